"""The Python samples of a Markdown page, and a script that runs them one after the other in one IPython shell.

The script reads `[[code, ...], ...]` from its standard input: for each sample what comes before it, the sample, and
what comes after it. A sample that shows its results (`>>>`) must give them.
"""

from __future__ import annotations

import doctest
import json
import re
import sys


def python_samples(markdown: str) -> list[str]:
    """The fenced blocks that say that they are Python, in order."""
    return re.findall(r"^```python\n(.*?)^```$", markdown, re.M | re.S)


def main() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config, colors="nocolor")
    shell.extension_manager.load_extension("lmnb")
    for steps in json.load(sys.stdin):
        for code in steps:
            if not code.startswith(">>> "):
                shell.run_cell(code).raise_error()
                continue
            for example in doctest.DocTestParser().get_examples(code):
                done = shell.run_cell(example.source)
                done.raise_error()
                assert repr(done.result).strip() == example.want.strip(), f"{example.source}gives\n{done.result!r}"


if __name__ == "__main__":
    main()
