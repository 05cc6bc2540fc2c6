"""Reads the JSON files of a model folder, and says how to mend a broken one. Knows nothing of their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmnb.env import cache_dir
from lmnb.errors import ModelNotFoundError


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None if there is no such file. ModelNotFoundError for anything else in it."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelNotFoundError(f"{path} is not valid JSON ({error}); {how_to_mend(path)}") from None
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read ({error}); {how_to_mend(path)}") from None
    if not isinstance(content, dict):
        raise ModelNotFoundError(f"{path} holds no JSON object; {how_to_mend(path)}")
    return content


def how_to_mend(path: Path) -> str:
    """What to do about a broken file: what lies in a cache is made again once its folder is gone."""
    folder = path.parent
    if cache_dir() / "models" in path.parents:
        return f"delete the folder {folder} and load the model again"
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return f"delete the folder {folder.parent.parent} and load the model again"
    return "fetch or convert the model again"
