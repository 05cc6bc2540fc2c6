"""Tables in text are shown as tables, images as thumbnails: what they say, and nothing else."""

from __future__ import annotations

import time

import pytest
from run_samples import NASTY
from view_fixtures import TABLES

from lmnb.language import events as ev
from lmnb.widgets import run_html
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.tables import find_tables

PNG = "data:image/png;base64,iVBORw0KGgo="


def html_of(*events: ev.RunEvent) -> str:
    model = RunModel()
    model.apply_all(map(ev.to_json, [ev.RunStarted("r", "p", "m", 0.0), *events]))
    return run_html.render(model).partition("</style>")[2]


def test_what_is_a_table_and_what_is_not() -> None:
    assert [len(find_tables(text)) for text in TABLES] == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    frame = find_tables(TABLES[0])[0]
    assert frame.head == ["", "name", "legs", "score"]
    assert frame.rows[1] == ["1", "Tom Cat", "3", "NaN"]
    assert [frame.numeric(column) for column in range(4)] == [True, False, True, True]
    assert find_tables(TABLES[1])[0].rows[1] == ["Bø | Bo", ""]


def test_a_real_frame_is_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": ["Rex", "Tom Cat"], "legs": [4, 3], "score": [0.5, None]})
    for text in (frame.to_string(), frame.to_csv(index=False)):
        (table,) = find_tables(text)
        assert table.head[-3:] == ["name", "legs", "score"]
        assert len(table.rows) == 2


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n" * 100_000,
        "a,b,c\n" * 100_000,
        "a|b\n" * 100_000,
        " a b\n1  2\n" * 50_000,
        "1 " * 50_000 + ",x,y\n",
    ],
    ids=["numbers", "words", "pipes", "frames", "a long cell"],
)
def test_long_text_is_looked_through_once(text: str) -> None:
    began = time.process_time()
    assert find_tables(text) == []
    assert time.process_time() - began < 10  # looking anew from each line would take hours


def test_cells_are_text() -> None:
    html = html_of(ev.TextAppended(0, f"a | b\n--- | ---\n{NASTY.replace('|', '')} | 2\nafter"))
    assert html.count("<td") == 2
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "<img" not in html
    assert '<td class="lmnb-number">2</td>' in html


@pytest.mark.parametrize(
    "preview",
    [
        "https://example.org/x.png",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:text/html;base64,PGI+",
        f'{PNG}" onerror="alert(1)',
    ],
)
def test_no_other_picture_than_a_small_one_of_bytes_is_shown(preview: str) -> None:
    html = html_of(ev.ImageAdded(0, "<image>", "image/png", 640, 480, 34_000, "abc", preview))
    assert "<img" not in html
    assert "[image 640×480 png]" in html


def test_an_image_is_a_thumbnail_with_words_for_it() -> None:
    html = html_of(ev.ImageAdded(0, "<image>", "image/png", 640, 480, 34_000, "abc", PNG))
    assert f'<img src="{PNG}" alt="image 640×480 png">' in html
    assert "image 640×480 png · 34 kB" in html
