"""`ProgramState`, the `s` of a program: what a program appends to and reads from.

Appending never waits; reading waits for just what is read, and raises what went wrong with its cause.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmnb.backends.unpicklable import Unpicklable
from lmnb.errors import GenerationError, LmnbError, ProgramError
from lmnb.language import arguments
from lmnb.language.body import Body
from lmnb.language.branching import Replacement, branch_from
from lmnb.language.defaults import Defaults
from lmnb.language.expressions import Expr, Gen, RoleBegin, Submitted, flatten
from lmnb.language.loop import background
from lmnb.language.model_steps import note_following
from lmnb.language.primitives import role_turn
from lmnb.language.role_scope import RoleScope
from lmnb.language.run import Run
from lmnb.language.seeds import SeedPath
from lmnb.language.source import caller_line
from lmnb.language.state_values import StateValues
from lmnb.language.steps import ForkStep, ScopeStep, SetStep, Step
from lmnb.language.stream import Stream
from lmnb.language.submission import check_roles, merge_text, prepare
from lmnb.language.token_choices import GeneratedTokens, generated_tokens
from lmnb.language.token_lens import Tokens, read_tokens
from lmnb.language.tools import ToolCall
from lmnb.language.variables import Failure, Variable

if TYPE_CHECKING:
    from lmnb.language.group import ProgramStateGroup

_REPR_CHARACTERS = 200
_RAISE = object()


class ProgramState(Unpicklable):
    """The state of one branch of a program. Made by `Program.run`, by `fork`, and by `open_state`."""

    _instead = "save its run with s.run.save('run.json'), or take its values: s['name'], s.text(), s.messages()"

    def __init__(
        self,
        stream: Stream,
        defaults: Defaults | None = None,
        *,
        variables: dict[str, Variable] | None = None,
        role: str | None = None,
        inline: bool = False,
        body: Body | None = None,
        seeds: SeedPath | None = None,
    ) -> None:
        self.stream = stream
        self.defaults = defaults or Defaults()
        self.ret_value: Any = None  # what the program's body returned
        self._variables = variables if variables is not None else {}
        self._inherited = dict(self._variables)  # of whom the state was forked
        self._role = role
        self.num_roles = 0  # opened here so far: tells one turn from the next
        self._inline = inline
        self._seeds = seeds or SeedPath()
        self._body = body
        self._values = StateValues(stream, self._variables, body)
        if body is not None:
            body.on_done = stream.signal.notify

    # Appending

    def __iadd__(self, other: str | Expr) -> ProgramState:
        self._append(flatten(other))
        return self

    def system(self, expr: str | Expr | None = None) -> Any:
        """A system turn: `s.system(expr)` adds it, `with s.system():` adds what is appended inside."""
        return self._turn("system", expr)

    def user(self, expr: str | Expr | None = None) -> Any:
        """A user turn: `s.user(expr)` adds it, `with s.user():` adds what is appended inside."""
        return self._turn("user", expr)

    def assistant(self, expr: str | Expr | None = None) -> Any:
        """An assistant turn: `s.assistant(expr)` adds it, `with s.assistant():` adds what is appended inside."""
        return self._turn("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """Collect all text that is appended inside into the variable `name`, also when the block is left early."""
        arguments.variable_name(name)
        where = f"var_scope({name!r}) at line {caller_line()}"
        variable = self._declare(Variable(name))
        variable.scope_thread = threading.get_ident()
        self._submit(ScopeStep(where, variable, begin=True))
        try:
            yield self
        finally:
            variable.scope_thread = None
            self._submit(ScopeStep(where, variable, begin=False))

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable, at once."""
        arguments.variable_name(name)
        self.stream.submit(SetStep("set_var", self._declare(Variable.ready(name, value))), optional=True)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ProgramStateGroup:
        """`size` branches that start with all that is in this state, and go on side by side.

        Returns at once. `position_ids_offset` (one number a branch): what a branch says stands so many positions
        further on than it would. Backends that cannot do that take zeros only.
        """
        from lmnb.language.group import ProgramStateGroup

        size = arguments.fork_size(size)
        offsets = arguments.position_offsets(position_ids_offset, size)
        backend = self.stream.backend
        if offsets and any(offsets) and not backend.capabilities.concatenates_caches:
            raise ProgramError(f"{backend.name} cannot move positions; leave out position_ids_offset, or give zeros")
        children = [self._child(seeds) for seeds in self._seeds.fork(size)]
        line = caller_line()
        self._submit(ForkStep(f"fork({size}) at line {line}", [child.stream for child in children], line, offsets))
        return ProgramStateGroup(children, self)

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator[ProgramState]:
        """A fork of one; when the block ends, its new variables are here, as lists of one."""
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    # Reading

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __contains__(self, name: object) -> bool:
        self._values.note_read()
        variable = self._variables.get(name) if isinstance(name, str) else None
        return variable is not None and variable.available

    def get_var(self, name: str) -> Any:
        """The variable's value, when it is there.

        UnknownVariableError if nothing sets it; GenerationError, with the cause, if what sets it failed;
        CancelledError if the run was stopped before.
        """
        return self._values.finished(name).value

    async def get(self, name: str) -> Any:
        """`get_var` for a coroutine on any event loop, which goes on meanwhile."""
        return (await self._values.finished_async(name)).value

    async def settled(self) -> None:
        """Wait, in a coroutine, until everything appended so far was done or skipped. Does not raise for failures."""
        await self._values.settle_async()

    def __await__(self) -> Generator[Any, None, ProgramState]:
        """`await s`: `sync` for a coroutine. What is appended so far is done then, so `text()` need not wait."""

        async def all_done() -> ProgramState:
            self._values.note_read()
            await self.settled()
            if self.stream.failure is not None:
                raise self.stream.failure.error()
            return self

        return all_done().__await__()

    def parsed(self, name: str, default: Any = _RAISE) -> Any:
        """The variable's typed value: a pydantic model, dataclass, dict, number ... by what constrained its `gen`.

        With a regex or a grammar, or without a constraint, it is the text. A constrained generation that was cut short
        raises GenerationError; or `default` is returned, if there is one.
        """
        variable = self._values.finished(name)
        try:
            return variable.typed()
        except GenerationError:
            if default is _RAISE:
                raise
            return default

    def call(self, name: str) -> Any:
        """Call the function that `gen(name, tools=[...])` chose, with the arguments it wrote; returns its result."""
        call = self.parsed(name)
        if not isinstance(call, ToolCall):
            raise ProgramError(f"variable {name!r} is no tool call; generate it with gen({name!r}, tools=[...])")
        return call.run()

    def get_meta_info(self, name: str) -> dict[str, Any] | None:
        """How the variable was generated: tokens, finish reason, seconds, log-probabilities. None if it was not."""
        if not self._values.is_declared_or_may_be(name):
            return None
        meta = self._values.finished(name).meta
        return None if meta is None else dict(meta)

    def text(self) -> str:
        """The whole text, when everything appended so far is done. After a cancel: what there is."""
        self._values.note_read()
        self._values.check(allow_cancelled=True)
        return self.stream.text

    def messages(self) -> list[dict[str, Any]]:
        """The closed turns, `{"role": ..., "content": ...}`, when everything appended so far is done.

        A turn's content is its text; with images in it, a list of text and image parts as OpenAI's API has them.
        """
        self._values.note_read()
        self._values.check(allow_cancelled=True)
        return [message.as_dict() for message in self.stream.messages]

    def tokens(self) -> Tokens:
        """The exact tokens of the prompt, each with where it came from: the chat template, the program, the model.

        Waits like `text()`. ProgramError on a backend that has no tokens to show.
        """
        self._values.note_read()
        self._values.check(allow_cancelled=True)
        return Tokens(background.call(lambda: read_tokens(self.stream.backend, self.stream.context)))

    def sync(self) -> None:
        """Wait until everything appended so far is done; raise if something of it did not happen."""
        self._values.note_read()
        self._values.check()

    def error(self) -> LmnbError | None:
        """What went wrong (GenerationError with its cause, or CancelledError), when everything so far is done."""
        self._values.note_read()
        self._values.settle()
        failure = self.stream.failure
        return None if failure is None else failure.error()

    def branch_at(self, name: str, token: int, text: str | None = None, *, token_id: int | None = None) -> ProgramState:
        """Go on from the middle of what was generated, in a new branch of the same run; returns its state at once.

        The branch keeps the first `token` tokens of the generation `name`, exactly; then it says `text`, or the token
        `token_id`, or (with neither) what is drawn anew; and then it goes on as the generation would have, with its
        own options: what is left of max_tokens, stops, constraint, seed. What was appended after the generation
        follows, up to where Python has read a value of this state, or has forked it. Nothing of the kept tokens is
        computed again. This state stays as it is, and may still be generating.

        ArgumentError for a token that is not there; ProgramError where the backend cannot. What the constraint does
        not allow raises where the new state is read.
        """
        record = self._values.generation(name, arguments.place("token", token))
        replacement = Replacement.of(text, token_id)
        return branch_from(record, token, replacement, ends=not record.branch.run.is_open)

    def generated(self, name: str) -> GeneratedTokens:
        """The tokens of the generation `name`, in order, with what else was likely in their places where that was
        asked for (return_logprob, top_logprobs_num). Waits for the generation's end."""
        self._values.finished(name)
        return generated_tokens(self._values.generation(name, 0))

    @property
    def text_so_far(self) -> str:
        """The text at this moment; never waits, never raises."""
        self._values.note_read()
        return self.stream.text

    @property
    def run(self) -> Run:
        """The run that this state speaks in."""
        return self.stream.branch.run

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text (or one variable's) as it comes, in pieces that add up to the whole. Raises where that fails."""
        reader = self._values.reader(var_name)
        while True:
            self._values.wait(reader.signal, reader.has_news)
            piece, over = reader.take()
            if piece is not None:
                yield piece[0]
            if over:
                return

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for a coroutine on any event loop. With `return_meta_data`: pairs of text and meta data."""
        reader = self._values.reader(var_name)
        while True:
            await reader.signal.wait_async(reader.has_news)
            piece, over = reader.take()
            if piece is not None:
                yield piece if return_meta_data else piece[0]
            if over:
                return

    def __aiter__(self) -> AsyncIterator[str]:
        """`async for piece in s`: the text as it comes."""
        return self.text_async_iter()

    def __repr__(self) -> str:
        text = self.text_so_far
        shown = text if len(text) <= _REPR_CHARACTERS else text[: _REPR_CHARACTERS - 1] + "…"
        running = "" if self.stream.drained and not (self._body and not self._body.done) else ", running"
        return f"ProgramState({shown!r}{running})"

    # Within the language

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables that were declared, ready or not."""
        return self._variables

    def declare(self, variable: Variable) -> None:
        """Put a variable here that something else sets."""
        self._declare(variable)

    def variables_before(self, step: Step) -> dict[str, Variable]:
        """The variables as they were when `step` was appended."""
        found = dict(self._inherited)
        for earlier in self.stream.steps_before(step):
            found.update({variable.name: variable for variable in earlier.variables})
        return found

    def submit(self, step: Step) -> None:
        """Add a step to the stream."""
        self._submit(step)

    def stop(self, error: BaseException) -> None:
        """The body has raised `error`: stop what it has started, and let readers know why."""
        self.stream.stop(Failure.of_body(error, cancelled=self.stream.branch.cancel.cancelled), Step())

    def wait_drained(self) -> None:
        """Wait until everything submitted so far was done or skipped. Does not raise for failures."""
        self._values.settle()

    @property
    def open_role(self) -> str | None:
        """The role that text appended now would be in."""
        return self._role

    def append_at(self, nodes: Sequence[Expr], line: int | None) -> None:
        """Add all of `nodes`, which stand at `line`, or none if one of them is wrong."""
        fresh = self._without_submitted(nodes)
        role = check_roles(fresh, self._role)
        merged = merge_text(fresh)
        prepared = [prepare(node, line, self._defaults_for(node), self.stream.backend) for node in merged]
        note_following(prepared)
        for node, step in zip(merged, prepared, strict=True):
            step.state = self
            if isinstance(node, Gen) and step.variables:
                step.variables[0].read = node.read
            for variable in step.variables:
                self._declare(variable)
            self.stream.submit(step)
        self.num_roles += sum(isinstance(node, RoleBegin) for node in fresh)
        self._role = role
        if self._inline and prepared:
            self._values.check()

    def _append(self, nodes: Sequence[Expr]) -> None:
        self.append_at(nodes, caller_line())

    def _defaults_for(self, node: Expr) -> Defaults:
        if self.defaults.seed is None or not isinstance(node, Gen):
            return self.defaults
        return replace(self.defaults, seed=self._seeds.next_seed(self.defaults.seed))

    def _without_submitted(self, nodes: Sequence[Expr]) -> list[Expr]:
        fresh: list[Expr] = []
        for node in nodes:
            if not isinstance(node, Submitted):
                fresh.append(node)
            elif node.owner is not self:
                fresh.extend(node.nodes)
            elif fresh:
                raise ProgramError(
                    "s.user(...) adds its turn when it is called, so it cannot stand behind text in one expression; "
                    "use user(...) there, or add the text in a line of its own"
                )
        return fresh

    def _turn(self, role: str, expr: str | Expr | None) -> Expr | RoleScope:
        if expr is None:
            return RoleScope(self, role)
        turn = role_turn(role, expr)
        self._append(turn.nodes)
        return Submitted(self, turn.nodes)

    def _declare(self, variable: Variable) -> Variable:
        self._variables[variable.name] = variable
        self.stream.signal.notify()
        return variable

    def _submit(self, step: Step) -> None:
        self.stream.submit(step)
        if self._inline:
            self._values.check()

    def _child(self, seeds: SeedPath) -> ProgramState:
        return ProgramState(
            Stream(self.stream.backend),
            self.defaults,
            variables=dict(self._variables),
            role=self._role,
            inline=self._inline,
            seeds=seeds,
        )
