"""One state's stream: steps in first-in first-out order, advanced by at most one task on the background loop.

What a step does is in `steps.py`. The fields under "loop" are written on the loop only; `submit` may be called from
any thread. A step that fails marks the stream: the steps after it are skipped, and say so to their readers.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from lmnb.backends.base import Backend, ConcatenatingContext, Context, SeeingContext
from lmnb.backends.images import Picture
from lmnb.language.branch import Branch, linked_token
from lmnb.language.current_run import current_branch
from lmnb.language.events import ImageAdded, RoleClosed, RoleOpened, RunEvent, TextAppended, TokensGenerated
from lmnb.language.loop import background
from lmnb.language.messages import Message, Piece
from lmnb.language.run import Run
from lmnb.language.token_parts import part
from lmnb.language.variables import Chunk, Failure, Variable
from lmnb.language.waiting import Signal
from lmnb.runtime.handle import forked_error
from lmnb.runtime.request import Origin, TokenLogprob

if TYPE_CHECKING:
    from lmnb.language.generated import Generated, StreamPlace
    from lmnb.language.steps import Step

_LONG_TEXT = 1 << 14  # characters: some hundredths of a second of a tokenizer's time


class Stream:
    """The steps of one branch, and what they have made so far."""

    def __init__(self, backend: Backend, branch: Branch | None = None) -> None:
        self.backend = backend
        self.signal = Signal()  # on new text, on each finished step, on failure
        self.num_submitted = 0 if branch is not None else 1  # a fork's child waits for the fork
        self.num_done = 0
        self.failure: Failure | None = None
        self._branch = branch
        self._lock = threading.Lock()
        self._queue: deque[Step] = deque()
        self._steps: list[Step] = []  # all that were submitted
        self.num_reads = 0  # times that someone has read what it says
        self._active = branch is None  # a fork's child is held until the fork happens
        self._process = os.getpid()  # where it was set going
        self._entered = False  # whether the run counts this stream, and hears from it
        self._ended = False
        # loop:
        self.context: Context | None = None
        self.chunks: list[Chunk] = []
        self.messages: list[Message] = []
        self.role: str | None = None
        self.journal: list[Piece] = []
        self.scopes: list[Variable] = []
        self.role_parts: list[str | Picture] = []  # of the open role
        self.generated: list[Generated] = []  # generations that have begun

    @property
    def branch(self) -> Branch:
        """Where the stream speaks; another one once its run is over and it goes on."""
        assert self._branch is not None
        return self._branch

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(chunk.text for chunk in list(self.chunks))

    @property
    def drained(self) -> bool:
        """Whether everything that was submitted has been done or skipped."""
        return self.num_done >= self.num_submitted

    # Any thread

    def submit(self, step: Step, *, optional: bool = False, ending: bool = False) -> None:
        """Add a step. Returns at once.

        `optional`: drop it if the branch is over already. `ending`: the branch is over once it is idle.
        """
        if self._active and self._process != os.getpid():
            if optional:
                return
            raise forked_error()  # nobody here takes its steps
        with self._lock:
            start = not self._active
            if start:
                if not self._attach(reopen=not optional and self.failure is None) and optional:
                    return
                self._active = True
                self._process = os.getpid()
                self.signal.renew()
            for variable in step.variables:
                variable.signal.renew()
            step.bind(self)
            self._ended |= ending
            self.num_submitted += 1
            step.num_reads = self.num_reads
            self._steps.append(step)
            self._queue.append(step)
        if start:
            background.spawn(self._advance)
        if step.announces:  # outside the lock: a view that is told may wait for the loop
            self.branch.run.announce()

    def stop(self, failure: Failure, marker: Step) -> None:
        """Cancel what runs here and in forks, and skip what waits, for the reason given."""
        self.branch.stopped = failure
        self.branch.cancel.cancel()
        self.submit(marker, optional=True)

    def hold(self, branch: Branch) -> None:
        """Give a fork's child its branch; its steps wait for `release`."""
        self._branch = branch
        self._entered = branch.run.enter(branch)

    def _attach(self, *, reopen: bool) -> bool:
        """Be counted by the run; with `reopen`, by another one if ours is over. Whether one counts this stream."""
        self._entered = self.branch.run.enter(self.branch)
        if not self._entered and reopen:
            self._branch = _new_place(self.backend, self.branch)
            self._ended = False
            self._entered = True
        return self._entered

    def steps_before(self, step: Step) -> list[Step]:
        """What was submitted before `step`."""
        return self._steps[: self._steps.index(step)]

    def steps_after(self, step: Step) -> list[Step]:
        """What was submitted after it."""
        return self._steps[self._steps.index(step) + 1 :]

    # The loop

    def adopt(self, parent: Stream, *, offset: int = 0, close_role: bool = False) -> None:
        """Start with all that `parent` has said, and go on `offset` positions further on. `close_role` closes a role
        that a cancel has left open."""
        assert parent.context is not None
        if offset:
            self.context = cast(ConcatenatingContext, parent.context).fork_moved(offset)
        else:
            self.context = parent.context.fork()
        self.messages = list(parent.messages)
        self.role = parent.role
        self.role_parts = list(parent.role_parts)
        text = parent.text
        if close_role and self.role is not None:
            self._close_message()
            text += self.context.end_role()
        self.chunks = [Chunk(text)] if text else []

    def adopt_place(self, other: Stream, place: StreamPlace) -> None:
        """Start with what `other` had said when it stood there."""
        self.context = place.restore()
        self.messages = other.messages[: place.num_messages]
        self.role = place.role
        self.role_parts = list(place.role_parts)
        text = "".join(chunk.text for chunk in other.chunks[: place.num_chunks])
        self.chunks = [Chunk(text)] if text else []

    def open_branch(self) -> None:
        """Tell views of a held child."""
        if self._entered:
            self.branch.run.open_branch(self.branch)

    def release(self) -> None:
        """Let a held child go."""
        self.num_done += 1
        self.signal.notify()
        background.spawn(self._advance)

    def publish(self, event: RunEvent) -> None:
        """Tell the run's views, if the run still listens."""
        if self._entered:
            self.branch.run.publish(event)

    def append(self, text: str, *, data: bool = False, tell: bool = True) -> None:
        """Add constant text. `tell=False`: views know of it from another event."""
        if not text:
            return
        if data:
            self._context().append(text, data=True)
        else:
            self._context().append(text)
        self._note_text(text, data=data, tell=tell)

    async def read_in(self, text: str) -> None:
        """`append` for a text of any length: a long one is tokenized beside the loop, which all runs share."""
        if len(text) < _LONG_TEXT:
            self.append(text)
            return
        await asyncio.to_thread(self._context().append, text)
        self._note_text(text)

    def _note_text(self, text: str, *, data: bool = False, tell: bool = True) -> None:
        self._emit(Chunk(text), Piece("generated" if data else "text", text))
        if tell:
            self.publish(TextAppended(self.branch.id, text))

    def append_image(self, picture: Picture) -> None:
        """Add an image or a video."""
        token = cast(SeeingContext, self._context()).append_image(picture)
        self._note_image(Piece("image", token, picture))

    def add_generated(
        self,
        text: str,
        num_tokens: int,
        logprobs: Sequence[TokenLogprob] = (),
        *,
        origin: Origin = "free",
        seconds: float | None = None,
        greedy: bool = False,
    ) -> None:
        """Take note of generated text, which the context has already, `seconds` after the generation began."""
        counted = 0 if origin in ("given", "kept") else num_tokens  # of these, nothing was generated now
        self._emit(Chunk(text, counted, logprobs), Piece("generated", text))
        if self._entered:
            told = part(
                text, num_tokens, self.backend, seconds=seconds, origin=origin, logprobs=logprobs, greedy=greedy
            )
            self.publish(TokensGenerated(self.branch.id, text, counted, [told]))

    def take_over(self, piece: Piece) -> None:
        """Add what the context has already."""
        if piece.picture is not None:
            self._note_image(piece)
            return
        self._emit(Chunk(piece.text), piece)
        self.publish(TextAppended(self.branch.id, piece.text))

    def begin_role(self, role: str) -> None:
        """Open a role."""
        prefix = self._context().begin_role(role)
        self._emit(Chunk(prefix), Piece("role", role))
        self.role = role
        self.role_parts = []
        self.publish(RoleOpened(self.branch.id, role, prefix))

    def end_role(self) -> None:
        """Close the open role; its text becomes a message."""
        suffix = self._context().end_role()
        self._close_message()
        self._emit(Chunk(suffix), Piece("role_end", ""))
        self.publish(RoleClosed(self.branch.id, suffix))

    def fail(self, failure: Failure) -> None:
        """Skip every later step. The first failure stays."""
        if self.failure is not None:
            return
        self.failure = failure
        for variable in self.scopes:
            variable.fail(failure)
        self.scopes.clear()
        self.branch.status = "cancelled" if failure.cancelled else "failed"
        self.branch.error = failure.error()
        if self._entered:
            self.branch.run.close_branch(self.branch)
        self.signal.notify()

    def stop_reason(self) -> Failure:
        """Why this stream was cancelled."""
        return self.branch.why_stopped() or Failure.of_cancel()

    def _context(self) -> Context:
        if self.context is None:
            self.context = self.backend.new_context()
        return self.context

    def _note_image(self, piece: Piece) -> None:
        picture = piece.picture
        assert picture is not None
        self._emit(Chunk(piece.text), piece)
        self.publish(
            ImageAdded(
                self.branch.id,
                piece.text,
                picture.mime,
                picture.width,
                picture.height,
                picture.num_bytes,
                picture.digest,
                picture.preview,
                len(picture.images),
            )
        )

    def _emit(self, chunk: Chunk, piece: Piece) -> None:
        self.chunks.append(chunk)
        self.journal.append(piece)
        if self.role is not None:
            self.role_parts.append(piece.picture or chunk.text)
        for variable in self.scopes:
            variable.push(chunk)
        self.signal.notify()

    def _close_message(self) -> None:
        assert self.role is not None
        self.messages.append(Message(self.role, tuple(self.role_parts)))
        self.role = None
        self.role_parts = []

    async def _advance(self) -> None:
        while (step := self._next()) is not None:
            await self._execute(step)
            self.num_done += 1
            self.signal.notify()

    async def _execute(self, step: Step) -> None:
        if self.failure is None and self.branch.cancel.cancelled:
            self.fail(self.stop_reason())
        if self.failure is None:
            try:
                self._context()
                await step.run(self)
                return
            except asyncio.CancelledError:
                self.fail(self.stop_reason() if self.branch.cancel.cancelled else _LOOP_STOPPED)
            except Exception as error:
                # After a cancel, an error is the backend's way of letting go.
                stopped = self.branch.cancel.cancelled
                self.fail(self.stop_reason() if stopped else Failure(f"{step.where} failed: {_told(error)}", error))
        assert self.failure is not None
        await step.skip(self, self.failure)

    def _next(self) -> Step | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._active = False
            branch, entered = self.branch, self._entered
            over = self._ended and entered
            if over:
                branch.closed = True  # under the lock: what is submitted from now on belongs to another branch
        if over:
            branch.run.close_branch(branch)
        if entered:
            branch.run.leave(branch)
        return None


_LOOP_STOPPED = Failure("lmnb's background loop was stopped")


def _new_place(backend: Backend, old: Branch) -> Branch:
    """Where a finished state goes on: in the run whose body is executing, else in a run of its own."""
    place = current_branch()
    if place is not None and place.run.enter():
        run = place.run
        branch = run.new_branch(
            place, index=0, fork=run.next_fork(), cancel=linked_token(place.cancel), program=old.program
        )
        run.enter(branch)
        run.leave()  # what kept the run from ending meanwhile
        background.post(lambda: run.open_branch(branch))
        return branch
    own = Run(old.program, backend, announce=False)  # views hear of it when it generates something
    own.enter(own.root)
    own.close()  # it is over as soon as the stream is idle
    return own.root


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
