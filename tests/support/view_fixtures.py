"""What the Python and the TypeScript models must both make of the same events: `python tests/support/view_fixtures.py`
writes it anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cache_samples import busy_cache
from run_samples import branched, images, judge, stopped

from lmnb.language import events as ev
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.tables import find_tables
from lmnb.widgets.tree_layout import layout
from lmnb.widgets.tree_model import CacheModel, Marks
from lmnb.widgets.tree_source import Translator

FIXTURES = Path(__file__).parents[1] / "widgets" / "fixtures"


def run_fixture(events: Sequence[ev.RunEvent]) -> dict[str, Any]:
    wires = [ev.to_json(event) for event in events]
    model = RunModel()
    model.apply_all(wires)
    return {"events": wires, "model": model.to_json()}


def tree_fixture() -> dict[str, Any]:
    """Wire events, and at several places the tree, the marks of the last second and of one step, and the layout."""
    cache = busy_cache()
    translator = Translator(cache.decode)
    model = CacheModel()
    for event in cache.events:
        model.append(translator.translate(event))

    def marks(found: Marks) -> dict[str, list[int]]:
        return {"fresh": sorted(found.new), "hit": sorted(found.hit), "evicted": sorted(found.evicted)}

    places = [
        {
            "count": count,
            "nodes": sorted(model.at(count).values(), key=lambda node: node["node"]),
            "recent": marks(model.marks(count)),
            "step": marks(model.marks(count, since=count - 1)),
            "boxes": [asdict(box) for box in layout(model.at(count))],
        }
        for count in range(0, len(model.events) + 1, 3)
    ]
    return {"events": model.events, "places": places}


TABLES = [
    "Here:\n      name  legs  score\n0      Rex     4    0.5\n1  Tom Cat     3    NaN\nand so on",
    "| city | people |\n|:-----|-------:|\n| Oslo | 709,037 |\n| Bø \\| Bo | |\n\nThat is all.",
    "a | b\n--- | ---\n<img src=x> | 2\n",
    "name,legs,tail\nRex,4,yes\nTom,3,no\n",
    "name\tlegs\nRex\t4\nTom\t3",
    "Hello, world, again\nyes, no, maybe\nso, it, is\n",  # a sentence
    "x = a | b\ny = c | d\n",  # code
    "1,2,3\n4,5,6\n7,8,9\n",  # nothing names the columns
    "a,b,c\n" + "1,2,3\n" * 600,  # too long
    "One line",
]


def tables_fixture() -> list[dict[str, Any]]:
    return [{"text": text, "tables": [asdict(table) for table in find_tables(text)]} for text in TABLES]


def fixtures() -> dict[str, Any]:
    """By file name, what the Python and the TypeScript models must both make of the same events."""
    return {
        "run_judge.json": run_fixture(judge()),
        "run_stopped.json": run_fixture(stopped()),
        "run_images.json": run_fixture(images()),
        "run_branched.json": run_fixture(branched()),
        "tree.json": tree_fixture(),
        "tables.json": tables_fixture(),
    }


if __name__ == "__main__":  # writes the fixtures anew; read the difference before committing it
    for name, value in fixtures().items():
        (FIXTURES / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
