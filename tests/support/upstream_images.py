"""Programs with images that SGLang's own frontend and lmnb run alike. `python upstream_images.py URL PATH` runs them on
the former.
"""

from __future__ import annotations

import sys
from typing import Any


def run_all(sgl: Any, backend: Any, path: str) -> None:
    """One after the other, so that requests come in one order."""
    sgl.set_default_backend(backend)

    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user(sgl.image(path) + "What is it?")
        s += sgl.assistant(sgl.gen("a", max_tokens=4, regex="[A-Z]"))
        s += sgl.user("And?")
        s += sgl.assistant(sgl.gen("b", temperature=0))

    @sgl.function
    def pick(s: Any) -> None:
        s += "See " + sgl.image(path) + ":"
        s += sgl.select("x", choices=[" a", " b"])

    @sgl.function
    def branch(s: Any) -> None:
        s += "See " + sgl.image(path) + "!"
        fork = s.fork(1)[0]
        fork += sgl.gen("y", max_tokens=2)
        fork.sync()

    for program in (ask, pick, branch):
        program.run().sync()


if __name__ == "__main__":
    import sglang
    from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

    run_all(sglang, RuntimeEndpoint(sys.argv[1]), sys.argv[2])
