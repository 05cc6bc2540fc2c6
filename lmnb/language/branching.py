"""Branches that part from inside a generation: they keep its first tokens, say something else, and go on from there.

The prompt is what the generation's was, and the kept tokens are the very tokens that it had, so that nothing of them
is computed again. The generation then goes on with its own options. What the program appended after it is repeated as
far as that cannot depend on what was generated: up to where Python has read a value, or has forked.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from lmnb.backends.base import CancelToken, ResumableContext
from lmnb.backends.well_formed import well_formed
from lmnb.errors import ArgumentError, ProgramError
from lmnb.language.branch import linked_token
from lmnb.language.generated import Begun, Generated
from lmnb.language.loop import background
from lmnb.language.steps import ForkStep, RoleStep, Step
from lmnb.language.stream import Stream
from lmnb.runtime.argument_checks import shown, whole_number
from lmnb.runtime.request import TokenLogprob

if TYPE_CHECKING:
    from lmnb.language.state import ProgramState

_READ = "The program had read a value before its next steps, which are not repeated here: go on with them in Python."
_FORK = "What the program did from its fork on is not repeated here: go on with it in Python."
_OTHER = "What the program did from {where} on is not repeated here: go on with it in Python."
_SHOWN = 40  # characters


@dataclass(frozen=True)
class Replacement:
    """What stands in place of a token: a text, a token by its id, or (neither) what is drawn anew."""

    text: str | None = None
    token_id: int | None = None

    @classmethod
    def of(cls, text: Any, token_id: Any) -> Replacement:
        """From what a caller hands in. ArgumentError for other kinds of values, or both at once."""
        if text is not None and token_id is not None:
            raise ArgumentError("text and token_id say the same thing: give one of them")
        if text is not None and not isinstance(text, str):
            raise ArgumentError(f"text must be text, not {shown(text)}")
        return cls(
            well_formed(text) if text else None, None if token_id is None else whole_number("token_id", token_id)
        )


def branch_from(origin: Generated, token: int, replacement: Replacement, *, ends: bool) -> ProgramState:
    """The state of a new branch of the same run, which says what `origin` did before its `token`-th token, then the
    replacement, and goes on. Returns at once. `ends`: the branch is over when it has nothing more to do.

    ArgumentError for a token that is not there or a replacement that cannot be; ProgramError where the backend cannot
    go on in the middle. What the constraint does not allow shows as the error of the generation.
    """
    from lmnb.language.state import ProgramState

    begun = _begun(origin, token, replacement)
    steps, note = _steps(origin, begun, fresh=replacement == Replacement())
    run = origin.branch.run
    run.enter_again()
    try:
        branch = run.new_branch(
            origin.branch,
            index=0,
            fork=run.next_fork(),
            cancel=linked_token(run.cancel_token),
            at=[origin.number, 0 if origin.step.node.reasoning is not None else origin.kept_units(token)],
            note=note,
            given=_given_text(origin, replacement),
        )
        stream = Stream(origin.stream.backend)
        stream.hold(branch)
    finally:
        run.leave()
    before = origin.state
    variables = before.variables_before(origin.step)
    for step in steps:
        variables.update({variable.name: variable for variable in step.variables})
    state = ProgramState(stream, before.defaults, variables=variables, role=_role_after(origin, steps))
    for step in steps:
        step.state = state
        stream.submit(step)
    if ends:
        stream.submit(Step(), optional=True, ending=True)

    def start() -> None:
        stream.adopt_place(origin.stream, origin.place)
        stream.open_branch()
        stream.release()

    background.post(start)
    return state


def _given_text(origin: Generated, replacement: Replacement) -> str | None:
    if replacement.token_id is not None:
        return origin.stream.backend.token_text(replacement.token_id)
    return replacement.text


def check_parting(origin: Generated, token: int, replacement: Replacement) -> None:
    """Raise what `branch_from` would raise at once, and start nothing."""
    _begun(origin, token, replacement)


async def alternatives(origin: Generated, token: int, count: int) -> list[TokenLogprob]:
    """What else was likely in place of the `token`-th token: its log-probability and the `count` likeliest tokens',
    as they were noted when it was generated, or else asked of the model now. Empty where it cannot tell. On the loop.
    """
    known = origin.logprobs.get(token)
    if known is not None and known.top:
        return [known]
    backend = origin.stream.backend
    if not backend.capabilities.logprobs or not origin.by_tokens or token > len(origin.ids):
        return []
    context = origin.place.restore()
    params = replace(
        origin.step.params,
        max_new_tokens=token + 1,
        min_new_tokens=0,
        stop=(),
        stop_regex=(),
        ignore_eos=origin.step.params.constraint is None,
        temperature=0.0,
        return_logprob=True,
        top_logprobs_num=count,
        jump_forward=False,
    )
    options: dict[str, Any] = {"begun": tuple(origin.ids[:token])}
    branch = origin.branch
    result = await context.generate(
        params,
        owner=branch.owner(origin.step.node.name, origin.step.line),
        cancel=CancelToken(),  # the question is not the run's: it is also asked when that was stopped
        on_delta=lambda _: None,
        **options,
    )
    entries = list(result.logprobs[-1:])
    if entries and token < len(origin.ids):
        chosen = origin.ids[token]  # the model was asked for its likeliest token; this one may be another
        value = dict(entries[0].top).get(chosen)
        if value is None:
            ids, owner = tuple(origin.ids[: token + 1]), branch.owner(origin.step.node.name, origin.step.line)
            again = cast(ResumableContext, origin.place.restore())
            value = await again.logprob_of(ids, owner=owner, cancel=CancelToken())
        entries = [TokenLogprob(chosen, value, entries[0].top)]
    return entries


async def ruled_out(origin: Generated, token: int, ids: Sequence[int]) -> frozenset[int]:
    """Those of `ids` that the generation's constraint does not allow in place of its `token`-th token. On the loop."""
    constraint = origin.step.params.constraint
    if constraint is None or not origin.by_tokens:
        return frozenset()
    context = cast(ResumableContext, origin.place.restore())
    return await context.ruled_out(constraint, origin.ids[:token], ids)


def _begun(origin: Generated, token: int, replacement: Replacement) -> Begun:
    """What the new generation begins with."""
    step, name = origin.step, origin.step.node.name or "the generation"
    if not 0 <= token <= len(origin):
        raise ArgumentError(
            f"{name!r} has {len(origin)} tokens so far, counted from 0, so there is no place {token} in it"
            if len(origin)
            else f"{name!r} has no token yet that a branch could part from"
        )
    text = replacement.text or ""
    if not origin.by_tokens:
        return _begun_by_text(origin, token, text, replacement)
    kept = tuple(origin.ids[:token])
    new: tuple[int, ...] = ()
    context = cast(ResumableContext, origin.stream.context)
    if replacement.token_id is not None:
        if not 0 <= replacement.token_id < context.vocab_size:
            raise ArgumentError(
                f"token_id must lie in [0, {context.vocab_size}), the model's tokens, not {replacement.token_id}"
            )
        new = (replacement.token_id,)
    elif text:
        new = background.call(lambda: context.encode_more(text))
    limit = step.params.max_new_tokens
    if len(kept) + len(new) > limit:
        raise ArgumentError(
            f"{text[:_SHOWN]!r} has {len(new)} tokens, and {name!r} may have {limit - token} more (max_tokens={limit})"
        )
    logprobs = tuple(origin.logprobs.get(place) for place in range(token)) if origin.logprobs else ()
    return Begun(token, kept + new, logprobs=logprobs)


def _begun_by_text(origin: Generated, token: int, text: str, replacement: Replacement) -> Begun:
    step, backend = origin.step, origin.stream.backend
    if step.params.constraint is not None:
        kind = step.params.constraint.kind.replace("_", " ")
        raise ProgramError(
            f"{backend.name} cannot go on inside a text that a {kind} constrains; run the program on lmnb.Runtime"
        )
    if replacement.token_id is not None:
        raise ProgramError(f"{backend.name} does not take tokens; give the text instead")
    kept = origin.kept_text(token)
    return Begun(token, text=kept + text, kept_text=kept)


def _steps(origin: Generated, begun: Begun, *, fresh: bool) -> tuple[list[Step], str | None]:
    """The generation again, and what was appended after it as far as it can be repeated; why not all of it."""
    step = origin.step
    params = step.params
    if not begun.ids and begun.text:
        room = max(params.max_new_tokens - begun.num_kept, 0)
        params = replace(params, max_new_tokens=room, min_new_tokens=min(params.min_new_tokens, room))
    if fresh and params.seed is not None:  # the same seed would draw the same token
        params = replace(params, seed=secrets.randbits(63))
    steps: list[Step] = [step.resumed(params, begun)]
    renewed = dict(zip(step.variables, steps[0].variables, strict=True))
    for later in origin.stream.steps_after(step):
        if type(later) is Step:
            continue  # a marker
        again = later.again(renewed)
        if isinstance(later, ForkStep):
            return steps, _FORK
        if again is None:
            return steps, _OTHER.format(where=later.where)
        if later.num_reads != step.num_reads:
            return steps, _READ
        steps.append(again)
        renewed.update(zip(later.variables, again.variables, strict=True))
    return steps, None


def _role_after(origin: Generated, steps: Sequence[Step]) -> str | None:
    role = origin.place.role
    for step in steps:
        if isinstance(step, RoleStep):
            role = step.role
    return role
