"""What a local runtime can be told: each option once, with its type, its default and what it means.

`Runtime` shows these as its own parameters; `%lmnb load` and `lmnb serve` take those that can be written in words.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lmnb.errors import ArgumentError

if TYPE_CHECKING:
    from lmnb.backends.templates import ChatTemplate
    from lmnb.runtime.loading import LoadedModel

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


def _told(says: str, read: type | None = None, word: str = "") -> dict[str, Any]:
    """What there is to say of an option. `read`: what makes a value of a word on a command line (a flag's is bool);
    None: it cannot be written there. `word`: what stands for the value in help."""
    return {"says": says, "read": read, "word": word}


@dataclass(frozen=True)
class RuntimeOptions:
    """A local runtime's options as they were given. They are checked where they are used: see `plan_runtime`."""

    model: str | Path | LoadedModel | None = field(
        default=None,
        metadata=_told('a name ("smollm2", the default), a folder, a GGUF file, a hub id, or a model that is loaded'),
    )
    _: KW_ONLY
    model_path: str | Path | None = field(default=None, metadata=_told("SGLang's name for `model`"))
    dtype: str = field(default="auto", metadata=_told("float32, bfloat16, float16 or auto", str, "DTYPE"))
    device: str = field(default="auto", metadata=_told("cpu, cuda or auto", str, "DEVICE"))
    quantization: str = field(
        default="auto",
        metadata=_told(
            "int8 or, on a GPU, fp8: weights in 8 bits; gguf (a GGUF file's integers as they are: on a CPU the "
            "default), none or auto",
            str,
            "KIND",
        ),
    )
    load_format: str = field(
        default="auto",
        metadata=_told("dummy (random weights in place of a folder's, which it need not have) or auto", str, "KIND"),
    )
    kv_cache: int | str | None = field(
        default=None, metadata=_told("room in the KV pool: tokens, or memory such as 512MiB", str, "SIZE")
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata=_told("fp8_e4m3 (keys and values in 8 bits: twice the tokens, less exactly) or auto", str, "DTYPE"),
    )
    max_running: int | None = field(default=None, metadata=_told("how many sequences are decoded together", int, "N"))
    prefill_chunk: int | None = field(
        default=None, metadata=_told("how many tokens of prompts a step computes", int, "N")
    )
    chat_template: str | ChatTemplate | None = field(
        default=None,
        metadata=_told("a registered name or Jinja source (default: the tokenizer's own)", str, "TEMPLATE"),
    )
    jump_forward: bool = field(
        default=True, metadata=_told("text that a constraint forces takes a step for each of its tokens", bool)
    )
    deterministic: bool = field(
        default=False,
        metadata=_told("the same prompt and seed give the same text, whatever else runs; slower", bool),
    )
    on_progress: Callable[[int, int], None] | None = field(
        default=None,
        metadata=_told("called with the bytes of weights read so far, and all there are, some ten times a second"),
    )

    def as_arguments(self) -> dict[str, Any]:
        """All of them by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def read_options(*args: Any, **options: Any) -> RuntimeOptions:
    """The options of a call. ArgumentError for one that there is not."""
    known = [one.name for one in fields(RuntimeOptions)]
    if len(args) > 1:
        raise ArgumentError(f"Runtime takes one model, and all else by name: {', '.join(known[1:])}")
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"
            raise ArgumentError(f"Runtime has no option {name!r}; {hint}")
    return RuntimeOptions(*args, **options)


def taking(
    shown: Callable[P, RuntimeOptions],
) -> Callable[[Callable[[S, RuntimeOptions], R]], Callable[Concatenate[S, P], R]]:
    """Makes a method of options take them one by one: editors, type checkers and tooltips see what `shown` takes."""

    def decorate(method: Callable[[S, RuntimeOptions], R]) -> Callable[Concatenate[S, P], R]:
        def spread(self: S, /, *args: P.args, **options: P.kwargs) -> R:
            return method(self, read_options(*args, **options))

        own, (first, _) = inspect.signature(shown), inspect.signature(method).parameters.values()
        spread.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[first, *own.parameters.values()],
            return_annotation=inspect.signature(method).return_annotation,
        )
        spread.__name__, spread.__qualname__ = method.__name__, method.__qualname__
        spread.__doc__, spread.__module__ = method.__doc__, method.__module__
        return spread

    return decorate


def described() -> str:
    """What each option means, a line each, for a docstring. Of a flag, what it means if it is not at its default."""
    lines = []
    for one in fields(RuntimeOptions):
        name = f"{one.name}={not one.default}" if one.metadata["read"] is bool else one.name
        text = f"{name}: {one.metadata['says']}"
        lines.append(textwrap.fill(text, 116, initial_indent="    ", subsequent_indent=" " * 8))
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command line take the options that can be written in words. Those that are not given have no value."""
    for one, name in _written():
        dest, says, default = one.name, one.metadata["says"], argparse.SUPPRESS
        if one.metadata["read"] is bool:
            act = "store_false" if one.default else "store_true"
            parser.add_argument(name, dest=dest, action=act, default=default, help=says)
        else:
            word, read = one.metadata["word"], one.metadata["read"]
            parser.add_argument(name, dest=dest, type=read, metavar=word, default=default, help=says)


def usage(indent: int, column: int, width: int) -> str:
    """The same as lines of help: names from `indent` on, what they mean from `column` on."""
    lines = []
    for one, name in _written():
        head = f"{' ' * indent}{name} {one.metadata['word']}".rstrip().ljust(column - 1) + " "
        lines.append(textwrap.fill(one.metadata["says"], width, initial_indent=head, subsequent_indent=" " * column))
    return "\n".join(lines)


def _written() -> Iterator[tuple[Field[Any], str]]:
    """The options that can be written in words, as they are written."""
    for one in fields(RuntimeOptions):
        if one.metadata["read"] is not None:
            no = "no-" if one.metadata["read"] is bool and one.default else ""
            yield one, f"--{no}{one.name.replace('_', '-')}"
