"""Run pytest, and what failed once more, in a new process: `run_tests.py [--side-by-side] PYTEST_ARGUMENTS...`.

`--side-by-side` has several processes run one file's tests each, as many as there are cores and memory for.

Of thousands of tests with threads, processes and browsers one may fail for the machine's sake. Such a test is named in
the end, and is to be mended like any other fault; it fails the run only if it fails twice, or if many do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_MOST = 3  # tests that failed: more are no chance
_TESTS_FAILED = 1  # pytest's exit code
_SIDE_BY_SIDE = "--side-by-side"
_MOST_PROCESSES = 8  # with more of them, the longest file's tests take longer than all others
_PROCESS_BYTES = 4 << 30  # what one takes at most, with the processes that its tests start
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def main() -> int:
    """pytest's exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != _SIDE_BY_SIDE]
    processes = _num_processes() if _SIDE_BY_SIDE in sys.argv else 1
    # In the order of collection, so that tests that are marked as long come first.
    beside = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"] if processes > 1 else []
    # Torch's threads that wait must leave the cores to the other processes.
    environment = {**({"OMP_WAIT_POLICY": "passive"} if beside else {}), **os.environ}
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"]
        code = subprocess.run([*pytest, *beside], env=environment).returncode
        failed = _failed(Path(cache))
        tests_only = all("::" in name for name in failed)  # or processes that do not collect the same tests
        if code != _TESTS_FAILED or not tests_only or not 0 < len(failed) <= _MOST:
            return code
        print(f"\nFailed, and run once more: {', '.join(failed)}", flush=True)
        code = subprocess.run([*pytest, "--last-failed", "--last-failed-no-failures", "none"]).returncode
    if code == 0:
        print(f"\nFLAKY, passed only when run once more (see above): {', '.join(failed)}", flush=True)
    return code


def _num_processes() -> int:
    """Of tests: one for each core that this process may use, if there is memory for as many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _free_bytes() // _PROCESS_BYTES, _MOST_PROCESSES))


def _free_bytes() -> int:
    """Memory that programs may take: what the machine has left, and no more than this container's limit."""
    found = [int(psutil.virtual_memory().available)]
    for path in _LIMIT_FILES:
        with suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(path.read_text("ascii")))
    return min(found)


def _failed(cache: Path) -> list[str]:
    """The tests, files and processes that pytest remembers as failed."""
    known = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(known.read_text("utf-8"))) if known.exists() else []


if __name__ == "__main__":
    sys.exit(main())
