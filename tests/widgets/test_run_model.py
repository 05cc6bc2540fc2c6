"""The reducer, by fixtures that the TypeScript reducer reads too, and the merging of tokens."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from run_samples import gen, interleave, judge, stopped
from view_fixtures import FIXTURES, fixtures

from lmnb.language import events as ev
from lmnb.widgets.run_model import RunModel, merge_tokens, rate


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    model = RunModel()
    model.apply_all(events)
    return model.to_json()


@pytest.mark.parametrize("name", ["run_branched.json", "run_images.json", "run_judge.json", "run_stopped.json"])
def test_a_run_folds_into_the_shared_fixture(name: str) -> None:
    stored = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    assert json.loads(json.dumps(fold(stored["events"]))) == stored["model"]


def test_the_stored_fixtures_are_the_samples() -> None:
    for name, value in fixtures().items():
        assert json.loads((FIXTURES / name).read_text(encoding="utf-8")) == json.loads(json.dumps(value)), name


def test_counts_and_states_of_a_judged_run() -> None:
    model = fold([ev.to_json(event) for event in judge()])
    assert (model["reused"], model["computed"], model["generated"]) == (40 + 64, 8 * 3 + 12, 6 + 1 + 4 + 2 + 2)
    assert model["first_token_seconds"] == 0.125
    assert [branch["status"] for branch in model["branches"]] == ["done", "done", "done", "failed", "done"]
    root, failed = model["branches"][0], model["branches"][3]
    assert [item["type"] for item in root["items"]].count("fork") == 1
    assert [item["branches"] for item in root["items"] if item["type"] == "fork"] == [[1, 2, 3]]
    assert failed["items"][-1]["status"] == "failed"
    assert failed["items"][-1]["text"] == "Half a"


def test_a_stopped_run_stops_what_was_open() -> None:
    model = fold([ev.to_json(event) for event in stopped()])
    assert model["status"] == "cancelled"
    assert [branch["status"] for branch in model["branches"]] == ["cancelled", "cancelled"]
    assert model["branches"][0]["items"][-1]["text"] == "你好 👩‍🚀"


def test_a_generation_that_gave_more_tokens_than_it_showed_counts_them() -> None:
    model = fold(
        [
            ev.to_json(event)
            for event in [
                ev.RunStarted("r", "p", "m", 0.0),
                ev.GenStarted(0, "x", "gen"),
                ev.TokensGenerated(0, "ab", 2),
                ev.GenFinished(0, "stop", None, 1, 2, 5, None, 1.0),
            ]
        ]
    )
    assert (model["generated"], model["branches"][0]["generated"]) == (5, 5)


def test_speed_counts_neither_parallel_time_twice_nor_pauses() -> None:
    assert rate(100, gen_seconds=8.0, run_seconds=2.0) == 50
    assert rate(100, gen_seconds=2.0, run_seconds=60.0) == 50
    assert rate(0, 1.0, 1.0) is None
    assert rate(5, 0.0, None) is None


def test_an_event_of_an_unknown_branch_is_an_error() -> None:
    model = RunModel()
    with pytest.raises(KeyError):
        model.apply(ev.to_json(ev.TextAppended(7, "x")))


@pytest.mark.parametrize("seed", range(20))
def test_merging_tokens_changes_no_model(seed: int) -> None:
    events = [ev.to_json(event) for event in judge()]
    random_ = random.Random(seed)
    merged: list[dict[str, Any]] = []
    while events:  # merge in deliveries of any size
        size = random_.randint(1, 12)
        merged += merge_tokens(events[:size])
        events = events[size:]
    assert fold(merged) == fold([ev.to_json(event) for event in judge()])


def test_tokens_of_many_branches_become_one_event_a_branch() -> None:
    lanes = [gen(branch, None, "one two three four")[1:-1] for branch in range(8)]
    events = [ev.to_json(event) for event in interleave(*lanes)]
    merged = merge_tokens(events)
    assert [(event["branch"], event["text"], event["num_tokens"]) for event in merged] == [
        (branch, "one two three four", 4) for branch in range(8)
    ]
    assert events[0]["text"] == "one"  # the originals are left alone


def test_tokens_are_not_merged_across_a_fork() -> None:
    events: list[ev.RunEvent] = [
        ev.TokensGenerated(0, "a", 1),
        ev.BranchOpened(1, 0, 0, 0, "0.0"),
        ev.TokensGenerated(0, "b", 1),
    ]
    assert len(merge_tokens(map(ev.to_json, events))) == 3
