"""The process that reads constraints for `reading_pool.py`. What it answers with has been compiled here, so that what
never comes to an end, wants all memory, or brings a library down, does so in this process.

It loads neither torch nor a model, ends when its parent does, and is ended by it when a constraint takes too long.
"""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import BinaryIO

from lmnb.errors import GrammarError, LmnbError
from lmnb.runtime.grammar_reading import Reading, read_constraint
from lmnb.runtime.grammar_vocab import GrammarVocabulary
from lmnb.runtime.llguidance_grammar import LLGuidanceCompiler
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

MOST_BYTES = 2 << 30  # of address space
SIZE_BYTES = 8  # an answer's size goes before it
Answer = Reading | Exception | None  # None: it is ready
_MUCH = f"the constraint needs more than {MOST_BYTES >> 30} GiB of memory to compile; simplify it"


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer pickled constraints, one after another, until there are no more of them. The first answer is None."""
    waiting: SimpleQueue[Constraint] = SimpleQueue()
    compiler = _compiler()
    threading.Thread(target=_take, args=(questions, waiting), daemon=True).start()
    _be_modest()
    _tell(answers, None)
    while True:
        constraint = waiting.get()
        try:
            answer: Answer = _answer(compiler, constraint)
        except LmnbError as error:
            answer = error
        except MemoryError:
            answer = GrammarError(_MUCH)
        except Exception as error:  # of a kind that may mean nothing elsewhere
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        _tell(answers, answer)


def _answer(compiler: LLGuidanceCompiler, constraint: Constraint) -> Reading:
    reading = read_constraint(constraint)
    if reading.schema is None:  # xgrammar gets small schemas only, whose time is known
        compiler.compile(constraint, reading)
    return reading


def _compiler() -> LLGuidanceCompiler:
    """For a vocabulary of bytes: whether a grammar can be enforced is the same for all."""
    tokenizer = ByteTokenizer()
    return LLGuidanceCompiler(GrammarVocabulary(tokenizer, tokenizer.vocab_size))


def _take(questions: BinaryIO, waiting: SimpleQueue[Constraint]) -> None:
    """In a thread of its own, so that the parent's end is noticed while a constraint is read."""
    with suppress(EOFError, OSError):
        while True:
            waiting.put(pickle.load(questions))
    os._exit(0)


def _tell(answers: BinaryIO, answer: Answer) -> None:
    with suppress(OSError):  # the parent has gone: see `_take`
        data = pickle.dumps(answer)
        answers.write(len(data).to_bytes(SIZE_BYTES, "big") + data)
        answers.flush()


def _be_modest() -> None:
    """Limit the memory, where that can be done."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def main() -> None:
    """What `reading_pool` runs. Whatever a library prints must not come between the answers."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    serve(questions, answers)
