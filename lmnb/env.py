"""The environment variables lmnb reads, in one typed place. A bad value raises; none is ignored."""

from __future__ import annotations

import os
from pathlib import Path

from lmnb.errors import ArgumentError


def cache_dir() -> Path:
    """Folder for converted models and compiled things: `LMNB_CACHE`, else the platform's cache folder. ArgumentError
    where that would be below a home folder that nobody knows."""
    value = os.environ.get("LMNB_CACHE")
    try:
        if value:
            return Path(value).expanduser()
        from platformdirs import user_cache_path

        found = user_cache_path("lmnb", appauthor=False)
    except RuntimeError:
        found = Path("~")
    if found.parts[:1] == ("~",):  # some versions of the library leave it so, which would be a folder of that name
        where = f"LMNB_CACHE={value!r} is below" if value else "the cache folder would be below"
        raise ArgumentError(f"{where} a home folder that cannot be determined: set LMNB_CACHE to a folder")
    return found


def view_mode() -> str | None:
    """How runs are shown: `LMNB_VIEW` = widget, html, text or off; None lets lmnb detect the front end."""
    value = os.environ.get("LMNB_VIEW")
    if not value:
        return None
    if value not in ("widget", "html", "text", "off"):
        raise ArgumentError(f"LMNB_VIEW must be widget, html, text or off, not {value!r}")
    return value


def api_key() -> str | None:
    """The key that `lmnb serve` asks of its clients: `LMNB_API_KEY`, or None."""
    return os.environ.get("LMNB_API_KEY") or None
