"""Unions whose models are told apart by a tag: every value that is written is one that pydantic reads."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Annotated, Any, Literal

import pytest
from typing_extensions import TypedDict

import lmnb

pydantic = pytest.importorskip("pydantic")
Field = pydantic.Field


class Form(str, enum.Enum):
    ROUND = "round"
    FLAT = "flat"


class Circle(pydantic.BaseModel):
    kind: Literal["circle"] = "circle"
    size: int = Field(ge=1, le=9)


class Square(pydantic.BaseModel):
    kind: Literal["square"] = "square"
    size: int = Field(ge=1, le=9)


class Grey(pydantic.BaseModel):
    kind: Literal["line"] = "line"
    colour: Literal["grey"] = "grey"


class Red(pydantic.BaseModel):
    kind: Literal["line"] = "line"
    colour: Literal["red"] = "red"


class One(pydantic.BaseModel):
    number: Literal[1] = 1


class Two(pydantic.BaseModel):
    number: Literal[2, 3] = 2


class Ball(pydantic.BaseModel):
    form: Literal[Form.ROUND] = Form.ROUND


class Disc(pydantic.BaseModel):
    form: Literal[Form.FLAT] = Form.FLAT


class Old(pydantic.BaseModel):
    kind: Literal["old"] = Field("old", alias="@type")


class New(pydantic.BaseModel):
    kind: Literal["new"] = Field("new", alias="@type")


@dataclasses.dataclass
class Left:
    side: Literal["left"] = "left"


@dataclasses.dataclass
class Right:
    side: Literal["right"] = "right"


class Up(TypedDict, total=False):
    way: Literal["up"]


class Down(TypedDict, total=False):
    way: Literal["down"]


class Tree(pydantic.BaseModel):
    kind: Literal["tree"] = "tree"
    below: list[Annotated[Circle | Tree, Field(discriminator="kind")]] = Field([], max_length=1)


class Drawing(pydantic.BaseModel):
    shape: Annotated[Circle | Square, Field(discriminator="kind")]


@dataclasses.dataclass
class Page:
    shape: Annotated[Circle | Square, Field(discriminator="kind")]


def told(union: Any, name: str) -> Any:
    return Annotated[union, Field(discriminator=name)]


UNIONS: list[tuple[Any, list[Any], list[Any]]] = [
    (Drawing, [{"shape": {"kind": "square", "size": 3}}], [{"shape": {"size": 3}}]),
    (Page, [{"shape": {"kind": "square", "size": 3}}], [{"shape": {"size": 3}}]),
    (list[told(Circle | Square, "kind")], [[{"kind": "circle", "size": 3}]], [[{"size": 3}]]),
    (
        told(told(Grey | Red, "colour") | Circle, "kind"),
        [{"kind": "line", "colour": "red"}, {"kind": "circle", "size": 1}],
        [{"colour": "red"}, {"kind": "line"}, {"size": 1}],
    ),
    (told(One | Two, "number"), [{"number": 1}, {"number": 3}], [{}, {"number": 4}]),
    (told(Ball | Disc, "form"), [{"form": "flat"}], [{}]),
    (told(Old | New, "kind"), [{"@type": "new"}], [{}]),
    (told(Left | Right, "side"), [{"side": "right"}], [{}]),
    (told(Up | Down, "way"), [{"way": "down"}], [{}]),
    (told(Circle | Square | None, "kind"), [None, {"kind": "square", "size": 3}], [{"size": 3}]),
    (Tree, [{"kind": "tree", "below": [{"kind": "tree", "below": []}]}], [{"kind": "tree", "below": [{"size": 1}]}]),
]


@pytest.mark.parametrize(("kind", "right", "wrong"), UNIONS, ids=lambda part: str(part)[:40])
def test_a_tag_is_written_though_it_has_a_default(kind: Any, right: list[Any], wrong: list[Any]) -> None:
    report = lmnb.check_constraint(dtype=kind, samples=[*right, *wrong])
    assert report.accepted == [True] * len(right) + [False] * len(wrong), report
    assert not report.notes
    reader = pydantic.TypeAdapter(kind)
    for value in right:
        reader.validate_json(json.dumps(value))
    for value in wrong:
        with pytest.raises(pydantic.ValidationError):
            reader.validate_json(json.dumps(value))
