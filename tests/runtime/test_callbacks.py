"""A callback that raises is its own request's error: no other request, and no engine, ends by it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from engine_support import fake_engine, greedy, prompt

from lmnb.errors import GenerationError
from lmnb.runtime.request import Event, FinishEvent, TokenEvent

pytestmark = [pytest.mark.usefixtures("step_order"), pytest.mark.timeout(60)]


def raising_at(
    kind: type[Event], seen: list[Event], error: type[BaseException] = ValueError
) -> Callable[[Event], None]:
    def take(event: Event) -> None:
        seen.append(event)
        if isinstance(event, kind):
            raise error("broken on purpose")

    return take


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [TokenEvent, FinishEvent])
def test_a_callback_that_raises_fails_its_own_request(kind: type[Event], error: type[BaseException]) -> None:
    seen: list[Event] = []
    with fake_engine() as engine:
        broken = engine.submit(prompt("a", 500), raising_at(kind, seen, error))
        other = engine.submit(prompt("b", 20))
        with pytest.raises(GenerationError, match=f"callback of request 1 raised {error.__name__}: broken on purpose"):
            broken.result(timeout=20)
        assert list(other.result(timeout=20).token_ids) == greedy("b", 20)
        assert not engine.closed
    if kind is TokenEvent:  # it was told of one token, and of the end, and the rest was not generated
        assert [type(event) for event in seen] == [TokenEvent, FinishEvent]
        assert isinstance(seen[-1], FinishEvent)
        assert len(seen[-1].completion.token_ids) < 500


def test_requests_of_an_engine_that_closes_are_all_told_whatever_their_callbacks_do() -> None:
    with fake_engine(step_seconds=0.01) as engine:
        handles = [engine.submit(prompt(f"{i}", 2000), raising_at(FinishEvent, [])) for i in range(3)]
        engine.close()
        for handle in handles:
            with pytest.raises(Exception, match="closed"):
                handle.result(timeout=30)


def test_a_listener_that_raises_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def broken(events: object) -> None:
        told.append(1)
        raise ValueError("broken on purpose")

    with fake_engine() as engine, caplog.at_level(logging.ERROR, "lmnb"):
        seen: list[object] = []
        forget_broken, forget = engine.subscribe(broken), engine.subscribe(seen.extend)
        for text in ("one", "two"):
            engine.submit(prompt(text, 4)).result(timeout=20)
        assert engine.status().running == 0
        assert len(told) == 1
        assert [event.kind for event in engine.cache_events()] == [event.kind for event in seen]  # type: ignore[attr-defined]
        forget_broken()
        forget()
    assert "a listener of the cache raised" in caplog.text
    assert "broken on purpose" in caplog.text


def test_a_subscription_can_be_ended_when_the_engine_is_closing() -> None:
    with fake_engine() as engine:
        forget = engine.subscribe(lambda events: None)
        engine._finalizer()  # it may be closed at any time, whatever `closed` has said before
        forget()
        engine.close()
        forget()
