"""Computing what many runs of a program have in common once, before they start."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Protocol

from lmnb.backends.base import Backend, CancelToken, Context, Owner
from lmnb.errors import LmnbError
from lmnb.language.branch import Branch
from lmnb.language.constant_prefix import constant_prefix, parameters_alike
from lmnb.language.expressions import Expr, RoleBegin, RoleEnd, Text
from lmnb.language.global_config import global_config
from lmnb.language.loop import background

if TYPE_CHECKING:
    from lmnb.language.program import Program

WORTH_CHARACTERS = 64  # a shorter prefix is computed faster than it is asked for
_POLL_SECONDS = 0.1


class _Call(Protocol):
    @property
    def args(self) -> Sequence[Any]: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def shared_prefix(program: Program, calls: Iterable[_Call]) -> list[Expr]:
    """What all these calls begin with, as far as the program's source says so; nothing of it is executed."""
    before = (None,) if program.owner is None else (program.owner, None)
    alike = parameters_alike(program.func, [((*before, *call.args), call.kwargs) for call in calls])
    graph = getattr(program.func, "__lmnb_graph__", None)
    if graph is not None:
        return list(graph.prefix(**alike))
    return constant_prefix(inspect.unwrap(program.func), alike, program.owner)


def precache(program: Program, calls: Sequence[_Call], backend: Backend, branch: Branch) -> None:
    """Have the backend compute what all `calls` begin with, and wait. What fails here will fail in the rows too."""
    if len(calls) < 2 or not global_config.enable_precache_with_tracing:
        return
    prefix = shared_prefix(program, calls)
    if sum(len(node.text) for node in prefix if isinstance(node, Text)) >= WORTH_CHARACTERS:
        commit(prefix, backend, branch.owner(None, None), branch.cancel)


def commit(prefix: Sequence[Expr], backend: Backend, owner: Owner, cancel: CancelToken) -> str:
    """Put texts and role marks into the backend's cache; returns their text. Interruptible. Errors are left for those
    who use the same prompt."""
    done: Future[str] = Future()

    async def work() -> None:
        try:
            context = backend.new_context()
            text = await asyncio.to_thread(lambda: "".join(_add(node, context) for node in prefix))  # of any length
            await context.commit(owner=owner, cancel=cancel)
            done.set_result(text)
        except LmnbError:
            done.set_result("")
        except BaseException as error:
            done.set_exception(error)

    background.spawn(work)
    try:
        while not wait([done], _POLL_SECONDS).done:
            pass
    except KeyboardInterrupt:
        cancel.cancel()
        raise
    return done.result()


def _add(node: Expr, context: Context) -> str:
    if isinstance(node, RoleBegin):
        return context.begin_role(node.role)
    if isinstance(node, RoleEnd):
        return context.end_role()
    assert isinstance(node, Text)
    context.append(node.text)
    return node.text
