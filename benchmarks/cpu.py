"""SmolLM2-135M on this CPU: lmnb's engine beside transformers' `generate`, and beside llama.cpp if there is one.

lmnb's default computes with the file's 4-bit integers, as llama.cpp does; transformers beside it in bfloat16 where the
CPU multiplies that, else in float32. In bfloat16 and float32 both have the same weights. Threads are the same, and each
peer has them to itself: transformers runs in a thread that ends with its round, since a second team of OpenMP threads
would slow down the engine's.

Definitions. prefill: 512 prompt tokens, nothing cached, one new token. decode: 64 new tokens after 64 of prompt,
first token not counted, one request or 8 at once. branches: 16 requests with 512 tokens in common and 16 of
their own, 32 new tokens each, handed over at once (transformers gets them as one batch); time to the last token.
Prompts are random token ids drawn by a seed; greedy; end tokens ignored. load: a new process, imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import cpu_kernels
from benchmarks.harness import interleaved, medians, ratio
from lmnb.runtime.apart import apart
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.embedded import embedded_gguf
from lmnb.runtime.engine import Engine
from lmnb.runtime.load_options import resolve_dtype
from lmnb.runtime.loading import load_model
from lmnb.runtime.model_source import resolve_source
from lmnb.runtime.request import Completion, Request, SamplingParams

_PREFILL, _PROMPT, _NEW = 512, 64, 64
_SHARED, _OWN, _SHARED_NEW, _NUM_SHARED = 512, 16, 32, 16
_DEFAULT = "auto"


def prompts(count: int, length: int, *, shared: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    """`count` prompts of `length` random ids, of which the first `shared` are the same in all."""
    rng = random.Random(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(100, 40_000) for _ in range(n))

    stem = ids(shared)
    return [stem + ids(length - shared) for _ in range(count)]


class Lmnb:
    """The engine, as a backend uses it."""

    def __init__(self, dtype: str, **config: Any) -> None:
        loaded = load_model(dtype=dtype)
        self.weights = loaded.model.weight_note or dtype
        self.engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(**config))

    def run(self, batch: list[tuple[int, ...]], new_tokens: int) -> list[Completion]:
        sampling = SamplingParams(temperature=0, max_new_tokens=new_tokens, ignore_eos=True)
        handles = [self.engine.submit(Request(input_ids=ids, sampling=sampling)) for ids in batch]
        return [handle.result() for handle in handles]

    def timed(self, batch: list[tuple[int, ...]], new_tokens: int, *, cold: bool = True) -> float:
        if cold:
            assert self.engine.flush_cache()
        began = time.perf_counter()
        self.run(batch, new_tokens)
        return time.perf_counter() - began

    def bookkeeping_share(self, batch: list[tuple[int, ...]], new_tokens: int) -> float:
        before = self.engine.status()
        self.timed(batch, new_tokens)
        after = self.engine.status()
        return (after.bookkeeping_seconds - before.bookkeeping_seconds) / (after.step_seconds - before.step_seconds)


class Transformers:
    """`generate` on the same files; a batch is one padded-free tensor, its most favourable form."""

    def __init__(self, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        folder, _ = resolve_source(None)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=resolve_dtype(dtype, torch.device("cpu")))

    def timed(self, batch: list[tuple[int, ...]], new_tokens: int, *, cold: bool = True) -> float:
        began = time.perf_counter()
        self.run(batch, new_tokens)
        return time.perf_counter() - began

    def run(self, batch: list[tuple[int, ...]], new_tokens: int, **more: Any) -> None:
        ids = torch.tensor(batch)
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=new_tokens,
                eos_token_id=None,
                pad_token_id=0,
                **more,
            )


class LlamaCpp:
    """llama-cpp-python in a process of its own, on the same file and threads. It has one request at a time."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("llama_peer.py")
        command = [python, str(script), str(embedded_gguf()), str(torch.get_num_threads())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self._answer()["version"]

    def figures(self) -> dict[str, float]:
        """One round of those figures that need one request only."""
        prefill = self._ask(prompts(1, _PREFILL, seed=1)[0], 1)
        decode = self._ask(prompts(8, _PROMPT, seed=2)[0], _NEW)
        return {
            "prefill_tokens_per_second": _PREFILL / prefill["first"],
            "first_token_seconds_cold": prefill["first"],
            "decode_tokens_per_second_batch_1": (_NEW - 1) / (decode["last"] - decode["first"]),
        }

    def decode(self, context: int, new_tokens: int) -> dict[str, float]:
        """One round behind a prompt of `context` tokens."""
        times = self._ask(prompts(1, context, seed=context)[0], new_tokens)
        return {
            "decode_tokens_per_second": (new_tokens - 1) / (times["last"] - times["first"]),
            "prefill_tokens_per_second": context / times["first"],
        }

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _ask(self, prompt: tuple[int, ...], new_tokens: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the llama.cpp peer ended: --llama-python must name a Python that has llama-cpp-python")
        return json.loads(line)


def figures(peer: Lmnb | Transformers) -> dict[str, float]:
    """One round of every figure."""
    long, short = prompts(1, _PREFILL, seed=1), prompts(8, _PROMPT, seed=2)
    first_cold = peer.timed(long, 1)
    first_warm = peer.timed(long, 1, cold=False)
    decode_1 = peer.timed(short[:1], _NEW) - peer.timed(short[:1], 1)
    decode_8 = peer.timed(short, _NEW) - peer.timed(short, 1)
    shared = peer.timed(prompts(_NUM_SHARED, _SHARED + _OWN, shared=_SHARED, seed=3), _SHARED_NEW)
    return {
        "prefill_tokens_per_second": _PREFILL / first_cold,
        "first_token_seconds_cold": first_cold,
        "first_token_seconds_warm": first_warm,
        "decode_tokens_per_second_batch_1": (_NEW - 1) / decode_1,
        "decode_tokens_per_second_batch_8": 8 * (_NEW - 1) / decode_8,
        "branches_output_tokens_per_second": _NUM_SHARED * _SHARED_NEW / shared,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, by dtype, with ratios to the peer; or those of the kernels alone."""
    if options.kernels:
        return cpu_kernels.measure(options)
    dtypes = [options.dtype] if options.dtype else [_DEFAULT, "bfloat16", "float32"]
    report: dict[str, Any] = {
        dtype: compare(dtype, options.rounds, options.llama_python if dtype == _DEFAULT else None) for dtype in dtypes
    }
    report["load_seconds"] = load_seconds(options.rounds)
    return report


def compare(dtype: str, rounds: int, llama_python: str | None) -> dict[str, Any]:
    """The engines in one dtype."""
    ours, theirs = Lmnb(dtype), apart(partial(Transformers, dtype), "peer")
    measures = {"lmnb": lambda: figures(ours), "transformers": lambda: apart(partial(figures, theirs), "peer")}
    llama = LlamaCpp(llama_python) if llama_python else None
    if llama is not None:
        measures["llama_cpp"] = llama.figures
    result = interleaved(rounds, **measures)
    batch = prompts(8, _PROMPT, seed=4)
    shares = [{"share": ours.bookkeeping_share(batch, _NEW)} for _ in range(rounds)]
    ours.engine.close()
    if llama is not None:
        llama.close()
    return {
        "lmnb_weights": ours.weights,
        **result,
        **{
            f"lmnb_over_{peer}": {name: ratio(result, name, peer) for name in result[peer]}
            for peer in result
            if peer != "lmnb"
        },
        "radix_bookkeeping_share_of_step_time": medians(shares)["share"],
    }


_LMNB_LOAD = "from lmnb import Runtime; Runtime().shutdown()"
_PEER_LOAD = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoTokenizer.from_pretrained({0!r}); AutoModelForCausalLM.from_pretrained({0!r}, dtype=torch.bfloat16)
"""


def load_seconds(rounds: int) -> dict[str, Any]:
    """Seconds from a new process to a model that can answer: the first time (conversion included), and later."""
    folder, _ = resolve_source(None)
    with tempfile.TemporaryDirectory() as empty:
        first = _seconds(_LMNB_LOAD, LMNB_CACHE=empty)
    later = interleaved(
        rounds,
        lmnb=lambda: {"seconds": _seconds(_LMNB_LOAD)},
        transformers=lambda: {"seconds": _seconds(_PEER_LOAD.format(str(folder)))},
    )
    return {"lmnb_first_time": round(first, 2), **{name: figures["seconds"] for name, figures in later.items()}}


def _seconds(code: str, **environment: str) -> float:
    timed = f"import time, json\nbegan = time.perf_counter()\n{code}\nprint(json.dumps(time.perf_counter() - began))"
    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-E", "-c", timed],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds: float = json.loads(done.stdout.splitlines()[-1])
    return seconds
