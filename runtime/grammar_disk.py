"""Compiled xgrammar grammars on disk, so that what took long to compile is there after a restart.

A file belongs to one vocabulary and one version of the library. A file that cannot be read is as good as none.
(llguidance compiles in a millisecond and cannot store what it compiled.)
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lmnb.env import cache_dir
from lmnb.runtime.grammar_vocab import GrammarVocabulary

_FORM = b"2"  # of what is made of a schema; another one when that changes
_WORTH_SECONDS = 0.05  # reading a file takes some milliseconds, too
_MOST_BYTES = 64 << 20  # of all files together; the oldest go first


class GrammarDisk:
    """`compiled_class`: xgrammar's CompiledGrammar; `info`: its tokenizer's description."""

    def __init__(self, compiled_class: Any, info: Any, vocabulary: GrammarVocabulary) -> None:
        self._class = compiled_class
        self._info = info
        self._vocabulary = vocabulary
        self._prefix: bytes | None = None

    def load(self, schema: str, loose: bool) -> Any | None:
        """The compiled schema, or None."""
        try:
            path = self._path(schema, loose)
            text = path.read_text("utf-8")
            compiled = self._class.deserialize_json(text, self._info)
            path.touch()
        except (OSError, RuntimeError, ValueError):
            return None
        return compiled

    def save(self, schema: str, loose: bool, compiled: Any, seconds: float) -> None:
        """Keep what took `seconds` to compile, if that is worth it. A disk that cannot be written is no error."""
        if seconds < _WORTH_SECONDS:
            return
        with suppress(OSError, RuntimeError, ValueError):
            path = self._path(schema, loose)
            data = compiled.serialize_json()
            if len(data) > _MOST_BYTES // 4:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".saving-", dir=path.parent) as work:
                made = Path(work) / path.name
                made.write_text(data, "utf-8")
                os.replace(made, path)
            _trim(path.parent)

    def _path(self, schema: str, loose: bool) -> Path:
        if self._prefix is None:
            digest = hashlib.sha256(_FORM + version("xgrammar").encode())
            for token in self._vocabulary.tokens:
                digest.update(len(token).to_bytes(4, "big") + token)
            self._prefix = digest.digest()
        name = hashlib.sha256(self._prefix + bytes([loose]) + schema.encode()).hexdigest()
        return cache_dir() / "grammars" / f"{name}.json"


def _trim(folder: Path) -> None:
    """Remove the files that were used longest ago, until what is left is small enough."""
    files = sorted(((file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("*.json")), reverse=True)
    total = 0
    for _, size, file in files:
        total += size
        if total > _MOST_BYTES:
            file.unlink(missing_ok=True)
