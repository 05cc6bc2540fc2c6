"""A new process that loads a model of random weights and says one token: what `start` in `gpu.py` times."""

from __future__ import annotations

import time

began = time.perf_counter()


def main() -> None:
    from benchmarks.gpu import make_engine, make_model

    imported = time.perf_counter()
    model = make_model()
    loaded = time.perf_counter()
    engine = make_engine(model)
    from lmnb.runtime.request import Request, SamplingParams

    handle = engine.submit(
        Request(input_ids=tuple(range(512)), sampling=SamplingParams(temperature=0, max_new_tokens=1, ignore_eos=True))
    )
    handle.result()
    ended = time.perf_counter()
    parts = f"import {imported - began:.2f}, weights {loaded - imported:.2f}, engine and token {ended - loaded:.2f}"
    print(time.time(), parts, flush=True)  # the parent compares this moment with when it started the process
    engine.close()


main()
