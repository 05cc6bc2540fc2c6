"""`python -m lmnb` and the `lmnb` command: its sub-commands come from the parts that do the work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lmnb.errors import LmnbError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    from lmnb.magics import kernel_spec
    from lmnb.server import command as server_command

    parser = argparse.ArgumentParser(prog="lmnb", description="Prompt programs in notebooks, and their engine.")
    commands = parser.add_subparsers(dest="command", required=True)
    server_command.add_commands(commands)
    kernel_spec.add_commands(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except LmnbError as error:
        print(f"lmnb: {error}", file=sys.stderr)  # noqa: T201  # a command line speaks here
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
