"""Run pytest, and what failed once more, in a new process: `run_tests.py PYTEST_ARGUMENTS...`.

Of thousands of tests with threads, processes and browsers one may fail for the machine's sake. Such a test is named in
the end, and is to be mended like any other fault; it fails the run only if it fails twice, or if many do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

_MOST = 3  # tests that failed: more are no chance
_TESTS_FAILED = 1  # pytest's exit code


def main() -> int:
    """pytest's exit code."""
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", *sys.argv[1:], "-o", f"cache_dir={cache}"]
        code = subprocess.run(pytest).returncode
        failed = _failed(Path(cache))
        if code != _TESTS_FAILED or not 0 < len(failed) <= _MOST:
            return code
        print(f"\nFailed, and run once more: {', '.join(failed)}", flush=True)
        code = subprocess.run([*pytest, "--last-failed", "--last-failed-no-failures", "none"]).returncode
    if code == 0:
        print(f"\nFLAKY, passed only when run once more (see above): {', '.join(failed)}", flush=True)
    return code


def _failed(cache: Path) -> list[str]:
    """The tests that pytest remembers as failed."""
    known = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(known.read_text("utf-8"))) if known.exists() else []


if __name__ == "__main__":
    sys.exit(main())
