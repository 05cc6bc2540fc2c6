"""No file of the repository depends on one machine: no private paths, no registry's address."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

# Written in two pieces, so that this file does not contain what it looks for.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:wo" r"rk|ro" r"ot|ho" r"me/\w+|opt/(?:wh" r"eels|pypi))/",
    "a registry's address": r"(?:py"
    r"pi|pythonhos"
    r"ted|np"
    r"mjs|down"
    r"load\.pytorch|deb\.deb"
    r"ian)\.(?:org|com)",
    "a local file's address": r"file:" r"///\w",
}


@pytest.fixture(scope="module")
def texts(root: Path) -> dict[str, str]:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    files = [name for name in names if name and (root / name).is_file() and not (root / name).is_symlink()]
    return {name: (root / name).read_text(encoding="utf-8", errors="replace") for name in files}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_mentions(texts: dict[str, str], what: str) -> None:
    assert len(texts) > 20
    found = [f"{name}: {match[0]}" for name, text in texts.items() for match in re.finditer(FORBIDDEN[what], text)]
    assert found == []


def test_the_patterns_find_what_they_should() -> None:
    samples = {
        "a path of one machine": ["/" + "work/main/x", "see /" + "home/ann/lmnb"],
        "a registry's address": ["https://registry.np" + "mjs.org/x", "py" + "pi.org/simple"],
        "a local file's address": ["file:" + "///tmp/x.whl"],
    }
    for what, examples in samples.items():
        assert all(re.search(FORBIDDEN[what], example) for example in examples), what
    names = "lmnb{0}work/x and notebooks{0}home/x and a{0}root/b".format("/")
    assert not re.search(FORBIDDEN["a path of one machine"], names)
