"""llama-cpp-python as a peer, run by the interpreter that has it: one JSON request a line in, one answer a line out.

A request {"prompt": [ids], "new_tokens": n} computes the prompt with nothing kept, then n greedy tokens, end tokens
ignored; the answer is seconds to the first token, and to the last.
"""

import json
import sys
import time

import llama_cpp
import numpy as np


def main(path: str, threads: int) -> None:
    llm = llama_cpp.Llama(
        path, n_ctx=8192, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    vocabulary = llm.n_vocab()

    def choose() -> int:
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (vocabulary,))
        return int(logits.argmax())

    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        llm.reset()
        began = time.perf_counter()
        llm.eval(request["prompt"])
        token = choose()
        first = time.perf_counter() - began
        for _ in range(request["new_tokens"] - 1):
            llm.eval([token])
            token = choose()
        print(json.dumps({"first": first, "last": time.perf_counter() - began}), flush=True)


main(sys.argv[1], int(sys.argv[2]))
