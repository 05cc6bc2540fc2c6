"""`python -m lmnb`: the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """What the `lmnb` command runs."""
    from lmnb.server.command import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
