"""Answers what a page asks about single tokens of a run: what else was likely there, and a branch that parts there.

The page names places by branch, generation and token. Every question gets an answer. Knows nothing of drawing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lmnb.errors import LmnbError
from lmnb.language.branching import Replacement, alternatives, branch_from, check_parting, ruled_out
from lmnb.language.generated import Generated
from lmnb.language.loop import background
from lmnb.language.state import ProgramState
from lmnb.language.token_parts import is_greedy, part

SHOWN = 5  # likeliest tokens

logger = logging.getLogger("lmnb.widgets")

Wire = dict[str, Any]
_GONE = "this run's state is gone: run the cell again (a run is kept as long as its state is in a variable)"
_SAVED = "this is a saved run, which no model goes on with: run the program again"


class Partings:
    """The generations of one run, to a page. `run` gives the run, or None once it is gone.

    `post` sends a message to the page; `keep` puts a new branch's state where the user finds it, and returns the name
    of that place; `tell` sends events on, behind those that were sent before.
    """

    def __init__(
        self,
        run: Callable[[], object | None],
        post: Callable[[Wire], None],
        keep: Callable[[ProgramState], str | None],
        tell: Callable[[list[Wire]], None],
    ) -> None:
        self._run = run
        self._post = post
        self._keep = keep
        self._tell = tell

    def ask(self, message: Mapping[str, Any]) -> None:
        """What else was likely at a place. Any thread; returns at once."""
        self._answer(message, self._ask)

    def part(self, message: Mapping[str, Any]) -> None:
        """Start a branch at a place, with a text, a token id, or neither. Any thread; waits for no generation."""
        self._answer(message, self._part)

    def _answer(self, message: Mapping[str, Any], act: Callable[[Generated, int, Mapping[str, Any]], None]) -> None:
        try:
            act(self._generated(message), int(message["token"]), message)
        except Exception as error:  # the page waits for an answer, whatever went wrong
            self._refuse(message, error)

    def _ask(self, generated: Generated, token: int, message: Mapping[str, Any]) -> None:
        async def ask() -> None:
            try:
                found = await alternatives(generated, token, SHOWN)
                ids = [token_id for entry in found[:1] for token_id, _ in entry.top]
                out = await ruled_out(generated, token, ids)
            except Exception as error:
                self._refuse(message, error)
                return
            reply: Wire = {"type": "likely", "detail": None, "ids": [], **_place(message)}
            if found:
                # At its end the model was asked for its own choice just now.
                greedy = is_greedy(generated.step.params) or token >= len(generated.ids)
                told = part("", 1, generated.stream.backend, logprobs=found[:1], greedy=greedy, ruled_out=out)
                text, logprob, top = told[4][0][:3]
                reply["detail"] = [text, logprob, top]
                reply["ids"] = ids
            self._post(reply)

        background.spawn(ask)

    def _part(self, generated: Generated, token: int, message: Mapping[str, Any]) -> None:
        replacement = Replacement.of(message.get("text"), message.get("id"))
        check_parting(generated, token, replacement)  # a run that is over is not opened, and drawn anew, for nothing
        run = generated.branch.run
        run.enter_again()  # until the branch has its name, the run is not over
        try:
            state = branch_from(generated, token, replacement, ends=True)
            branch, name = state.stream.branch.id, self._keep(state)
            if name is not None:
                background.post(lambda: self._tell([{"type": "named", "branch": branch, "name": name}]))
        finally:
            background.post(run.leave)
        self._post({"type": "parted", "opened": branch, **_place(message)})

    def _generated(self, message: Mapping[str, Any]) -> Generated:
        run = self._run()
        if run is None:
            raise LmnbError(_GONE)
        known = getattr(run, "generated", None)
        if known is None:
            raise LmnbError(_SAVED)
        found = known.get((message["branch"], message["gen"]))
        if not isinstance(found, Generated):
            raise LmnbError("no branch can part from this text, or its state is gone: run the cell again")
        return found

    def _refuse(self, message: Mapping[str, Any], error: Exception) -> None:
        why = str(error)
        if not isinstance(error, LmnbError):
            logger.error("a view's question failed", exc_info=error)
            why = f"{type(error).__name__}: {error}"
        self._post({"type": "refused", "why": why, **_place(message)})


def _place(message: Mapping[str, Any]) -> Wire:
    return {key: message.get(key) for key in ("branch", "gen", "token")}
