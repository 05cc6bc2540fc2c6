"""States for bodies that a caller executes itself: a notebook's cell."""

from __future__ import annotations

from lmnb.backends.base import Backend
from lmnb.errors import GenerationError, ProgramError
from lmnb.language.defaults import Defaults
from lmnb.language.loop import background
from lmnb.language.run import Run
from lmnb.language.state import ProgramState
from lmnb.language.stream import Stream


def open_state(
    backend: Backend,
    *,
    program: str = "cell",
    cell: str | None = None,
    defaults: Defaults | None = None,
    continue_from: ProgramState | None = None,
    background_run: bool = False,
) -> ProgramState:
    """A fresh state in a new run, for a body that the caller executes within `state.run.active()`.

    End it with `state.run.finish()`. `continue_from`: start with all that another state has said, and its variables;
    it is waited for. `background_run`: the body will run in another thread, and readers elsewhere wait for its end.
    A state that failed cannot be continued (its error is raised); a cancelled one can: a turn that
    was cut off is closed. `defaults` None takes that state's, else the ordinary ones.
    """
    earlier = continue_from
    if earlier is None:
        run = Run(program, backend, cell=cell, background=background_run)
        return ProgramState(Stream(backend, run.root), defaults, body=run.body)
    error = earlier.error()
    if isinstance(error, GenerationError):
        raise error
    if earlier.stream.backend is not backend:
        raise ProgramError(
            f"the state to continue was made on {earlier.stream.backend.name}, and this cell runs on {backend.name}; "
            "run it on the same model"
        )
    cut = earlier.stream.failure is not None
    run = Run(program, backend, cell=cell, background=background_run)
    stream = Stream(backend, run.root)
    if earlier.stream.context is not None:
        background.call(lambda: stream.adopt(earlier.stream, close_role=cut))
    return ProgramState(
        stream,
        defaults or earlier.defaults,
        variables=dict(earlier.variables),
        role=None if cut else earlier.open_role,
        body=run.body,
    )
