"""`StateValues`: what readers of a state wait for, and the errors that they get in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lmnb.errors import LmnbError, ProgramError
from lmnb.language.body import Body
from lmnb.language.generated import Generated
from lmnb.language.interrupts import calm_interrupts
from lmnb.language.reading import Reader
from lmnb.language.stream import Stream
from lmnb.language.variables import Variable, unknown_variable
from lmnb.language.waiting import Signal
from lmnb.runtime.handle import forked_error


class StateValues:
    """Of a stream and the variables that its steps set, more of which may be declared meanwhile. `body`: of the
    program, which may go on declaring them elsewhere."""

    def __init__(self, stream: Stream, variables: dict[str, Variable], body: Body | None) -> None:
        self._stream = stream
        self._variables = variables
        self._body = body

    @property
    def _body_elsewhere(self) -> Body | None:
        """The body, if more may come from it that the caller has no part in."""
        return self._body if self._body is not None and self._body.elsewhere else None

    def note_read(self) -> None:
        """What is appended from now on may depend on what was said before."""
        self._stream.num_reads += 1

    def is_declared_or_may_be(self, name: str) -> bool:
        """Whether the variable is there, or may yet come."""
        return name in self._variables or self._body_elsewhere is not None

    def finished(self, name: str) -> Variable:
        """The variable, when it has its value; UnknownVariableError, GenerationError or CancelledError if it gets
        none."""
        self.note_read()
        body = self._body_elsewhere
        if body is not None:
            self.wait(self._stream.signal, lambda: name in self._variables or body.done)
        variable = self._declared(name)
        self.wait(variable.signal, lambda: variable.done)
        return _with_value(variable)

    async def finished_async(self, name: str) -> Variable:
        """`finished` for a coroutine on any event loop, which goes on meanwhile."""
        self.note_read()
        body = self._body_elsewhere
        if body is not None:
            await self._stream.signal.wait_async(lambda: name in self._variables or body.done)
        variable = self._declared(name)
        await variable.signal.wait_async(lambda: variable.done)
        return _with_value(variable)

    def generation(self, name: str, token: int) -> Generated:
        """The generation that sets a variable, when it has come as far as the token, or to its end."""
        variable = self._declared(name)

        def arrived() -> bool:
            record = variable.generated
            return variable.done or (record is not None and len(record) > token)

        self.wait(variable.signal, arrived)
        if variable.generated is None:
            _with_value(variable)
            raise ProgramError(
                f"{name!r} was not generated, so no branch can part from inside it; name the variable of a gen"
            )
        return variable.generated

    def reader(self, var_name: str | None) -> Reader:
        """Who follows the text, or one variable's."""
        self.note_read()
        body = self._body_elsewhere
        if body is None and var_name is not None and var_name not in self._variables:
            raise self._missing(var_name)
        return Reader(self._stream, self._variables, var_name, (lambda: body.done) if body is not None else None)

    def settle(self) -> None:
        """Wait until everything appended so far was done or skipped. Does not raise for failures."""
        body = self._body_elsewhere
        if body is not None:
            self.wait(self._stream.signal, lambda: body.done)
        target = self._stream.num_submitted
        self.wait(self._stream.signal, lambda: self._stream.num_done >= target)

    async def settle_async(self) -> None:
        """`settle` for a coroutine on any event loop."""
        body = self._body_elsewhere
        if body is not None:
            await self._stream.signal.wait_async(lambda: body.done)
        target = self._stream.num_submitted
        await self._stream.signal.wait_async(lambda: self._stream.num_done >= target)

    def check(self, *, allow_cancelled: bool = False) -> None:
        """`settle`, and raise if something of it did not happen."""
        self.settle()
        failure = self._stream.failure
        if failure is not None and not (allow_cancelled and failure.cancelled):
            raise failure.error()

    @calm_interrupts
    def wait(self, signal: Signal, ready: Callable[[], bool]) -> None:
        """Wait in the caller's thread."""
        body = self._body_elsewhere
        if body is not None and body.left_behind and not ready():
            raise forked_error()
        if body is not None and body.needs_this_thread and not ready():
            raise ProgramError(
                "the program's body runs on this thread's event loop, so waiting here would stop it: "
                "use `await state.get('x')`, `await state` or `async for`"
            )
        try:
            signal.wait(ready)
        except KeyboardInterrupt:
            # Who stops a cell that waits for a value wants the generation to stop; a background run is its own.
            run = self._stream.branch.run
            if not run.background:
                run.cancel()
            raise

    def _declared(self, name: str) -> Variable:
        variable = self._variables.get(name)
        if variable is None:
            raise self._missing(name)
        if variable.scope_thread == threading.get_ident() and not variable.done:
            raise ProgramError(f"var_scope({name!r}) is still open here; read the variable after the with block")
        return variable

    def _missing(self, name: str) -> LmnbError:
        stopped = self._stream.branch.why_stopped()
        failure = self._stream.failure or stopped
        if stopped is not None and failure == stopped:
            return stopped.error(f"variable {name!r} was never set")
        error = unknown_variable(name, self._variables)
        if failure is not None:
            error.__cause__ = failure.error()
        return error


def _with_value(variable: Variable) -> Variable:
    if variable.failure is not None:
        raise variable.failure.error(f"variable {variable.name!r} has no value")
    return variable
