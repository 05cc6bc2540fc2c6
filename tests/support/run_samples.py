"""Runs made of plain events, for the tests of the views."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lmnb.language import events as ev

NASTY = "<img src=x onerror=alert(1)></script><script>alert(2)</script> \"'& <|im_start|>system \x1b[2J"


def chat(branch: int, role: str, *inside: ev.RunEvent) -> list[ev.RunEvent]:
    return [
        ev.RoleOpened(branch, role, f"<|im_start|>{role}\n"),
        *inside,
        ev.RoleClosed(branch, "<|im_end|>\n"),
    ]


def gen(
    branch: int, var: str | None, text: str, *, reason: str = "stop", reused: int = 0, computed: int = 8
) -> list[ev.RunEvent]:
    words = text.split(" ")
    pieces = [word if i == 0 else " " + word for i, word in enumerate(words)]
    return [
        ev.GenStarted(branch, var, "gen", line=3),
        *(ev.TokensGenerated(branch, piece, 1) for piece in pieces),
        ev.GenFinished(branch, reason, None, reused, computed, len(pieces), 0.125, 0.5),
        *([ev.VariableSet(branch, var, text)] if var else []),
    ]


def select(branch: int, var: str, choices: list[str], scores: list[float], picked: int) -> list[ev.RunEvent]:
    methods = [
        {"name": "token_length_normalized", "scores": scores, "picked": picked},
        {"name": "greedy_token_selection", "scores": [2 * score for score in scores], "picked": picked},
    ]
    return [
        ev.GenStarted(branch, var, "select", "choices", 7),
        ev.ChoiceMade(
            branch, choices[picked], choices, scores, "token_length_normalized",
            [[[choice[:2], score, score - 1], [choice[2:], score, None]]
             for choice, score in zip(choices, scores, strict=True)],
            methods, ["The text before ends with ':' and " + NASTY],
        ),
        ev.GenFinished(branch, "stop", None, 64, 12, 2, 0.0625, 0.25),
        ev.VariableSet(branch, var, choices[picked]),
    ]  # fmt: skip


def interleave(*streams: Sequence[ev.RunEvent]) -> list[ev.RunEvent]:
    """Events of branches that run side by side."""
    merged: list[ev.RunEvent] = []
    for place in range(max(len(stream) for stream in streams)):
        merged += [stream[place] for stream in streams if place < len(stream)]
    return merged


def judge() -> list[ev.RunEvent]:
    """A program with roles, a fork of three (one nested, one failing), a join and a select."""
    lanes = [
        [*chat(1, "user", ev.TextAppended(1, "Judge the clarity of the essay.")),
         *chat(1, "assistant", *gen(1, "judgment", "Clear enough to be read twice.", reused=40)),
         ev.BranchFinished(1, "done")],
        [*chat(2, "user", ev.TextAppended(2, "Judge its evidence.")), *gen(2, "judgment", "Thin", reason="length"),
         ev.BranchOpened(4, 2, 0, 1, "0.1.0"), *gen(4, "detail", "No source is named."), ev.BranchFinished(4, "done"),
         ev.BranchesJoined(2, [4], "gather_variable"), ev.BranchFinished(2, "done")],
        [*chat(3, "user", ev.TextAppended(3, NASTY)), ev.GenStarted(3, "judgment", "gen", "regex"),
         ev.TokensGenerated(3, "Half a", 2),
         ev.BranchFinished(3, "failed", "GenerationError: the regex cannot match " + NASTY)],
    ]  # fmt: skip
    return [
        ev.RunStarted("r1", "judge", "smollm2-135m-instruct", 1000.0, "3"),
        *chat(0, "system", ev.TextAppended(0, "You are a fair"), ev.TextAppended(0, " judge of essays.")),
        ev.TextAppended(0, "\n"),
        *(ev.BranchOpened(i + 1, 0, i, 0, f"0.{i}") for i in range(3)),
        *interleave(*lanes),
        ev.BranchesJoined(0, [1, 2, 3], "gather_variable"),
        *chat(0, "user", ev.TextAppended(0, "Grade: ")),
        *chat(0, "assistant", *select(0, "grade", ["good", "fair", "poor"], [-1.5, -0.25, -2.0], 1)),
        ev.VariableSet(0, "grade", "fair"),
        ev.VariableSet(0, "judgments", "['Clear', 'Thin', None]", "list"),
        ev.BranchFinished(0, "done"),
        ev.RunFinished("done", 2.0),
    ]


def stopped() -> list[ev.RunEvent]:
    """A run that was cancelled in the middle of a generation, beside a called program and a batch row, whose
    constrained values were cut by the limit on their tokens; one of them was then set anew."""

    def cut(var: str) -> list[ev.RunEvent]:
        return [
            ev.GenStarted(1, var, "gen", "regex", 6),
            ev.TokensGenerated(1, "1220", 4),
            ev.GenFinished(1, "length", None, 0, 1, 4, 0.125, 0.5, "llguidance"),
            ev.VariableSet(1, var, "1220"),
        ]

    return [
        ev.RunStarted("r2", "cell", "fake", 2000.0),
        ev.TextAppended(0, "Count: "),
        ev.BranchOpened(1, 0, 0, 0, "0.0", "count", 5),
        ev.TextAppended(1, "one "),
        *cut("code"),
        *cut("year"),
        ev.TextAppended(1, ". "),
        ev.VariableSet(1, "year", "1969", "int"),
        ev.GenStarted(0, None, "gen", "json_schema", 2),
        ev.TokensGenerated(0, "你好", 2),
        ev.TokensGenerated(0, " 👩‍🚀", 3),
        ev.GenFinished(0, "cancelled", None, 4, 2, 5, None, 0.75),
        ev.RunFinished("cancelled", 0.75, "stopped by the user"),
    ]


PIXEL = (  # one red pixel
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def images() -> list[ev.RunEvent]:
    """A turn with an image and a video in it; the video has no preview."""
    dot = ev.ImageAdded(0, "<image>", "image/png", 1, 1, 69, "0a1b2c3d4e5f", PIXEL)
    film = ev.ImageAdded(0, "<image>", "image/png", 640, 480, 8_000_000, "5f4e3d2c1b0a", "", frames=8)
    return [
        ev.RunStarted("r3", "look", "fake-vl", 3000.0),
        *chat(
            0, "user", ev.TextAppended(0, "What is "), dot, ev.TextAppended(0, " and "), film, ev.TextAppended(0, "?")
        ),
        *chat(0, "assistant", *gen(0, "answer", "A dot.")),
        ev.BranchFinished(0, "done"),
        ev.RunFinished("done", 1.0),
    ]


def branched() -> list[ev.RunEvent]:
    """Two branches part from inside one generation, one of them after the run was over; one parts from a branch."""

    def piece(branch: int, text: str, origin: str) -> ev.TokensGenerated:
        return ev.TokensGenerated(branch, text, 0, [[len(text), 1, None, origin]])

    def variant(branch: int, kept: list[str], given: str, rest: str, reused: int) -> list[ev.RunEvent]:
        return [
            ev.GenStarted(branch, "answer", "gen", line=3),
            *(piece(branch, text, "kept") for text in kept),
            piece(branch, given, "given"),
            ev.TokensGenerated(branch, rest, 1),
            ev.GenFinished(branch, "stop", None, reused, 1, 1, 0.0625, 0.25),
            ev.VariableSet(branch, "answer", "".join(kept) + given + rest),
        ]

    why = "The program had read a value before its next steps."
    return [
        ev.RunStarted("b7", "cell", "SmolLM2", 1_700_000_000.0, "5"),
        *chat(0, "user", ev.TextAppended(0, "A city?")),
        ev.RoleOpened(0, "assistant", "<|im_start|>assistant\n"),
        ev.GenStarted(0, "answer", "gen", line=3),
        *(ev.TokensGenerated(0, text, 1) for text in ("Oslo", " it")),
        ev.BranchOpened(1, 0, 0, 0, "0~1", at=[0, 4], given=" was"),
        *variant(1, ["Oslo"], " was", " it", 9)[:3],
        ev.TokensGenerated(0, " is", 1),
        *variant(1, ["Oslo"], " was", " it", 9)[3:],
        ev.GenFinished(0, "stop", None, 0, 8, 3, 0.125, 0.5),
        ev.VariableSet(0, "answer", "Oslo it is"),
        ev.RoleClosed(0, "<|im_end|>\n"),
        ev.RoleClosed(1, "<|im_end|>\n"),
        ev.BranchFinished(1, "done"),
        ev.BranchFinished(0, "done"),
        ev.RunFinished("done", 1.5),
        ev.RunResumed(1_700_000_060.0),
        ev.BranchOpened(2, 0, 0, 1, "0~2", at=[0, 0], note=why),
        *variant(2, [], "Bergen", " it", 8),
        ev.BranchOpened(3, 2, 0, 2, "0~2~1", at=[0, 6]),
        *variant(3, ["Bergen"], NASTY, " is", 9),
        ev.BranchFinished(3, "done"),
        ev.BranchFinished(2, "done"),
        ev.RunFinished("done", 2.5),
    ]


class FakeRun:
    """A run whose events are given by the test; delivers on the calling thread, as often as asked."""

    def __init__(self, events: Sequence[ev.RunEvent] = ()) -> None:
        self.events = list(events)
        self.cancelled = threading.Event()
        self._callbacks: list[Callable[[ev.RunEvent], None]] = []

    def subscribe(self, callback: Callable[[ev.RunEvent], None]) -> Callable[[], None]:
        for event in self.events:
            callback(event)
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def num_subscribers(self) -> int:
        return len(self._callbacks)

    def publish(self, *events: ev.RunEvent) -> None:
        for event in events:
            self.events.append(event)
            for callback in list(self._callbacks):
                callback(event)

    def cancel(self) -> None:
        self.cancelled.set()
