"""One call of a program: its state in a run (its own, or the one whose body is executing), and its body's end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import Backend
from lmnb.language.body import Body
from lmnb.language.branch import Branch, linked_token
from lmnb.language.coroutines import run_to_end
from lmnb.language.current_run import current_branch
from lmnb.language.defaults import Defaults
from lmnb.language.loop import background
from lmnb.language.run import Run
from lmnb.language.state import ProgramState
from lmnb.language.steps import Step
from lmnb.language.stream import Stream
from lmnb.runtime import threads

if TYPE_CHECKING:
    from lmnb.language.program import Program


@dataclass(frozen=True)
class RunOptions:
    """How a program is run, apart from its arguments."""

    backend: Backend
    defaults: Defaults
    use_thread: bool = True
    stream: bool = False


@dataclass(frozen=True)
class Home:
    """Where calls of one program are at home: in the run that goes on (below `branch`), or in a new one."""

    run: Run
    branch: Branch
    joined: bool

    @classmethod
    def find(cls, program: str, backend: Backend) -> Home:
        """The run whose body this thread executes, counted as active; else a new run. Ends with `leave`."""
        place = current_branch()
        if place is not None and place.run.enter():
            return cls(place.run, place, True)
        run = Run(program, backend)
        run.enter()
        return cls(run, run.root, False)

    def leave(self, error: BaseException | None = None) -> None:
        """The calls have been made."""
        if not self.joined:
            self.run.close(error)
        self.run.leave()


class Call:
    """A program, its arguments and the state that it runs on."""

    def __init__(
        self, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], options: RunOptions, branch: Branch
    ) -> None:
        self.program = program
        self.args = args
        self.kwargs = kwargs
        self.branch = branch
        self.finished = False  # the body has ended, and all that it started
        body = Body() if options.stream else None
        self.body = body
        self.state = ProgramState(
            Stream(options.backend, branch), options.defaults, inline=not options.use_thread, body=body
        )

    def execute(self) -> None:
        """Run the body to its end while this thread waits. What it raises also stops what it started."""
        __tracebackhide__ = True
        if self.program.is_async:
            run_to_end(self.execute_async, f"lmnb-{self.program.name}")
            return
        try:
            with self.branch.run.active(self.branch):
                self.state.ret_value = self.program.call_body(self.state, self.args, self.kwargs)
        except BaseException as error:
            self.state.stop(error)
            raise
        finally:
            self.state.stream.submit(Step(), optional=True, ending=True)

    async def execute_async(self) -> None:
        """The same for a body that is a coroutine, on the loop that runs."""
        try:
            with self.branch.run.active(self.branch):
                self.state.ret_value = await self.program.call_body(self.state, self.args, self.kwargs)
        except BaseException as error:
            self.state.stop(error)
            raise
        finally:
            self.state.stream.submit(Step(), optional=True, ending=True)

    def execute_quietly(self) -> None:
        """The same; what it raises is the state's error, and is not raised here."""
        with contextlib.suppress(Exception):  # kept as the state's failure
            self.execute()

    async def execute_quietly_async(self) -> None:
        """The same for a coroutine."""
        with contextlib.suppress(Exception):
            await self.execute_async()

    def start_thread(self, done: Callable[[], None]) -> None:
        """Run the body in a thread of its own, with this thread's context; then call `done`."""
        body = self.body
        assert body is not None
        context = copy_context()

        def work() -> None:
            try:
                # Nobody waits for this thread, so nothing would catch an interrupt; readers are told of all of these.
                with body.entered(), contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
                    self.execute_quietly()
            finally:
                body.finish()
                done()

        body.thread = threading.Thread(target=context.run, args=(work,), name=f"lmnb-{self.program.name}", daemon=True)
        threads.start(body.thread)

    def start_task(self, done: Callable[[], None]) -> None:
        """Run the body, a coroutine, in a task of its own on the loop that runs; then call `done`."""
        body = self.body
        assert body is not None

        async def work() -> None:
            try:
                with body.entered():
                    await self.execute_quietly_async()
            finally:
                body.finish()
                done()

        body.loop = asyncio.get_running_loop()
        body.task = body.loop.create_task(work())


def new_call_branch(home: Home, program: str, *, fork: int, index: int = 0, row: int | None = None) -> Branch:
    """A branch for one more call in `home`, which starts with nothing said; views are told."""
    run = home.run
    branch = run.new_branch(
        home.branch, index=index, fork=fork, cancel=linked_token(home.branch.cancel), program=program, row=row
    )
    background.post(lambda: run.open_branch(branch))
    return branch
