"""The built front end that is committed: small, of one file, and asking nobody for anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cache_samples import busy_cache
from run_samples import branched, images, judge

from lmnb.language.events import to_json
from lmnb.widgets import CacheView, run_html
from lmnb.widgets.run_html import STATIC
from lmnb.widgets.run_model import RunModel

ROOT = Path(__file__).parents[2]


def test_the_bundle_is_small_because_every_saved_widget_holds_it() -> None:
    for view in ("run", "tree"):
        assert (STATIC / f"{view}.js").stat().st_size < 46_000
        assert (STATIC / f"{view}.css").stat().st_size < 22_000
    assert (STATIC / "still.css").stat().st_size < 14_000  # every saved picture holds this one


def test_nothing_is_loaded_from_elsewhere() -> None:
    for name in (path.name for path in STATIC.iterdir()):
        text = (STATIC / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|\burl\(|\bfetch\(|XMLHttpRequest|\beval\(|innerHTML", text)


def test_the_front_end_has_the_package_version() -> None:
    package = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert package["version"] == version
    assert package["private"] is True
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", pin) for pin in package["devDependencies"].values())


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_every_class_of_static_pictures_has_its_style_in_the_small_sheet() -> None:
    live, still = ((STATIC / name).read_text(encoding="utf-8") for name in ("tree.css", "still.css"))
    drawn = CacheView(busy_cache(), "html")._picture()
    for sample in (judge, branched, images):
        model = RunModel()
        model.apply_all(map(to_json, sample()))
        drawn += run_html.render(model)
    assert {"lmnb-kept", "lmnb-parting", "lmnb-image"} <= set(re.findall(r"lmnb-[\w-]+", drawn))
    used = {name for names in re.findall('class="([^"]*)"', drawn) for name in names.split()}
    styled = {name for name in used if re.search(rf"\.{name}(?![\w-])", live)}
    assert len(styled) > 25
    assert [name for name in styled if not re.search(rf"\.{name}(?![\w-])", still)] == []
