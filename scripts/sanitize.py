"""Run the kernels' checks on a CUDA GPU under compute-sanitizer, shared out among processes:
`sanitize.py [--tool memcheck|racecheck|...] [--processes N] [--python PYTHON]`.

A sanitizer makes a kernel a hundred times slower, much of it on one core. Each process has checks of every kind, and
its output is shown when it has ended. An error in any fails the run, and so does a check that did not run: a process
that does not end in time, as one that waits for the device may, is killed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_CHECKS = ("tests/kernels/triton_checks.py", "tests/runtime/device_sampler_checks.py")
_STUCK_SECONDS = 200  # after which a check tells where it is
_MOST_SECONDS = 1800.0
# Tensors of their own, not pieces of torch's pool, so that a sanitizer sees what lies outside of them.
_ENVIRONMENT = {"LMNB_TEST_DEVICE": "cuda", "LMNB_TEST_SHAPES": "small", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def main() -> int:
    """0 if all checks have run and passed, and the sanitizer has found nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="memcheck")
    parser.add_argument("--processes", type=int, default=max(1, min(12, (os.cpu_count() or 1) - 2)))
    parser.add_argument("--python", default=sys.executable, help="one that has lmnb and CUDA")
    options = parser.parse_args()
    environment = {**os.environ, **_ENVIRONMENT}
    pytest = [options.python, "-m", "pytest", "-p", "no:cacheprovider"]
    listed = subprocess.run(
        [*pytest, "--collect-only", "-q", *_CHECKS], env=environment, stdout=subprocess.PIPE, text=True
    )
    checks = sorted(line for line in listed.stdout.splitlines() if "::" in line)
    if listed.returncode or not checks:
        print(listed.stdout)
        return 1
    sanitizer = ["compute-sanitizer", "--tool", options.tool, "--error-exitcode", "1"]
    with tempfile.TemporaryDirectory() as folder:
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        try:
            for number in range(options.processes):
                part, log = Path(folder, f"{number}.txt"), Path(folder, f"{number}.log")
                part.write_text("".join(f"{check}\n" for check in checks[number :: options.processes]), "utf-8")
                run = [*sanitizer, *pytest, "-q", "-o", f"faulthandler_timeout={_STUCK_SECONDS}", f"@{part}"]
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        run, env=environment, stdout=output, stderr=output, start_new_session=True
                    )
                running.append((process, log))
            failed, passed = _results(running)
        finally:
            for process, _ in running:  # those of a run that was interrupted, too
                _end(process)
    print(f"{options.tool}: {passed} of {len(checks)} checks passed; {failed} of {len(running)} processes failed")
    return int(bool(failed) or passed != len(checks))


def _results(running: list[tuple[subprocess.Popen[bytes], Path]]) -> tuple[int, int]:
    """How many processes failed, and how many checks passed; shows what each has said."""
    failed = passed = 0
    until = time.monotonic() + _MOST_SECONDS
    for process, log in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        _end(process)
        failed += process.wait() != 0
        said = log.read_text("utf-8", errors="replace")
        passed += sum(map(int, re.findall(r"^(\d+) passed", said, re.MULTILINE)))
        print(said, flush=True)
    return failed, passed


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and what it has started, if there is anything left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
