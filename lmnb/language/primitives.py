"""The words of the language: `gen`, `select`, `image`, roles. Each checks its arguments and makes an expression."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from lmnb.errors import ArgumentError
from lmnb.language import arguments
from lmnb.language.choices import ChoicesSamplingMethod, token_length_normalized
from lmnb.language.expressions import Expr, ExprList, Gen, Image, RoleBegin, RoleEnd, SamplingOptions, Select, flatten
from lmnb.language.placeholders import Placeholder
from lmnb.language.reasoning import get_reasoning_format
from lmnb.language.shapes import ShapeArguments
from lmnb.runtime.argument_checks import check_text, shown, whole_number

ROLES = ("system", "user", "assistant")
_GEN_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: int | Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | type | None = None,
    *,
    ebnf: str | None = None,
    tools: Iterable[Callable[..., Any]] | None = None,
    json_style: str = "compact",
    grammar_backend: str = "auto",
    jump_forward: bool | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
) -> Expr:
    """Generated text, kept in the variable `name`. What is None comes from the program's defaults.

    At most one of these constrains the text: `regex`; `ebnf`, a grammar in Lark's form or GBNF's; `json_schema`, as
    a dict, JSON text, a pydantic model, a dataclass or another type; `dtype`, as int, float, bool, str, an enum, a
    `Literal` or any type that `json_schema` takes; `tools`, Python functions one of which is to be called. The
    variable's value stays text: `s.parsed(name)` is the typed value, `s.call(name)` calls the tool. JSON is compact
    unless `json_style="loose"`. `grammar_backend` ("llguidance", "xgrammar") names the library that must enforce it.
    `jump_forward=False` samples even text that the constraint forces.

    A match of `stop_regex` ends the text and is cut from it, like a `stop` string.
    With `choices` it is a `select`. With `n > 1` the variable is a list, whose first
    text is the one that the prompt goes on with.
    Raises ArgumentError or GrammarError at once for what cannot work; a long regex is judged when it is compiled.
    """
    wanted = ShapeArguments(
        dtype=dtype,
        regex=regex,
        json_schema=json_schema,
        ebnf=ebnf,
        tools=tools,
        json_style=json_style,
        grammar_backend=grammar_backend,
    )
    if choices is not None:
        wanted.refuse_beside("choices")
        return select(name, choices, 0.0 if temperature is None else temperature, choices_method)
    shape = wanted.shape()
    options = _options(
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        n=n,
        stop=stop,
        stop_regex=stop_regex,
        stop_token_ids=stop_token_ids,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        repetition_penalty=repetition_penalty,
        ignore_eos=ignore_eos,
        seed=seed,
        jump_forward=jump_forward,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
    )
    if shape is None:
        return Gen(_checked_name(name), options)
    return Gen(_checked_name(name), options, shape.constraint, shape.extra_stop, read=shape.read)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: int | Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Expr:
    """A whole number, as text."""
    options = dict(locals())
    return gen(dtype=int, **options)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: int | Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Expr:
    """Text in double quotes, on one line; the quotes are part of it."""
    options = dict(locals())
    return gen(dtype=str, **options)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float | None = 0.0,
    choices_method: ChoicesSamplingMethod | None = None,
) -> Expr:
    """One of `choices`, the likeliest by `choices_method` (default `token_length_normalized`)."""
    if choices is None or isinstance(choices, str):
        raise ArgumentError("select needs choices=[...], a list of texts")
    options = choices if isinstance(choices, Placeholder) else checked_choices(choices)
    temperature = arguments.sampling({"temperature": temperature})["temperature"]
    if temperature is not None and temperature > 1e-5:
        raise ArgumentError(f"select always takes the likeliest choice; leave out temperature={temperature}")
    method = choices_method or token_length_normalized
    if not isinstance(method, ChoicesSamplingMethod):
        raise ArgumentError(f"choices_method must be a ChoicesSamplingMethod, not {shown(method)}")
    return Select(_checked_name(name), options, method)


def system(expr: str | Expr | None = None) -> Expr:
    """A system turn."""
    return role_turn("system", expr)


def user(expr: str | Expr | None = None) -> Expr:
    """A user turn."""
    return role_turn("user", expr)


def assistant(expr: str | Expr | None = None) -> Expr:
    """An assistant turn."""
    return role_turn("assistant", expr)


def system_begin() -> Expr:
    """Opens a system turn."""
    return RoleBegin("system")


def system_end() -> Expr:
    """Closes a system turn."""
    return RoleEnd("system")


def user_begin() -> Expr:
    """Opens a user turn."""
    return RoleBegin("user")


def user_end() -> Expr:
    """Closes a user turn."""
    return RoleEnd("user")


def assistant_begin() -> Expr:
    """Opens an assistant turn."""
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    """Closes an assistant turn."""
    return RoleEnd("assistant")


def separate_reasoning(expr: str | Expr, model_type: str) -> Expr:
    """`expr`, with the reasoning of its generations taken out of the text.

    Each `gen` (or `select`) `x` in it leaves its answer in the variable `x`, in the text and in the prompt, and its
    reasoning in `x_reasoning_content`; both can be read while they come. `model_type` names the kind of model, such
    as "qwen3" or "deepseek-r1" (see `register_reasoning_format`). ArgumentError for a `gen` without a name.
    """
    form = get_reasoning_format(model_type)
    nodes: list[Expr] = []
    for node in flatten(expr):
        if isinstance(node, (Gen, Select)):
            if node.name is None:
                raise ArgumentError("separate_reasoning needs generations with names: name must be provided")
            node = replace(node, reasoning=form)
        nodes.append(node)
    return nodes[0] if len(nodes) == 1 else ExprList(tuple(nodes))


def image(expr: Any) -> Expr:
    """An image, for models that see: the path of a local file, an encoded file's bytes, a PIL image, or a uint8 array
    (or torch tensor) of shape (channels, height, width).

    It is read and checked now, and encoded once however many branches and calls it goes to. PNG, JPEG, GIF and WebP
    files are sent as they are; what else Pillow can read becomes a PNG. ArgumentError for what is no image. Adding it
    to a state whose backend reads no images raises, too.
    """
    return picture_of(expr, None)


def video(path: Any, num_frames: Any) -> Expr:
    """`num_frames` frames of a local video file, evenly spaced. Needs `lmnb[video]`.

    A video with fewer frames gives all of them, with a warning. Servers of SGLang get one video, chat APIs as many
    images. ArgumentError for what is no video.
    """
    if not isinstance(num_frames, Placeholder):
        num_frames = whole_number("num_frames", num_frames)
        if num_frames < 1:
            raise ArgumentError(f"num_frames must be at least 1, not {num_frames}")
    return picture_of(path, num_frames)


def picture_of(source: Any, num_frames: Any) -> Image:
    """The node of `image(source)`, or of `video(source, num_frames)`."""
    if isinstance(source, Placeholder) or isinstance(num_frames, Placeholder):
        return Image(source, num_frames)
    if num_frames is None:
        from lmnb.backends.image_reading import load_image

        return Image(load_image(source))
    if not isinstance(source, (str, os.PathLike)):
        raise ArgumentError(f"video takes the path of a local file, not a {type(source).__name__}")
    from lmnb.backends.video_reading import load_video

    frames, total = load_video(source, num_frames)
    if total < num_frames:
        warnings.warn(
            f"the video {os.fspath(source)!r} has {total} frames, not {num_frames}: all of them are used, none twice",
            stacklevel=3,
        )
    return Image(frames)


def role_turn(role: str, expr: str | Expr | None) -> ExprList:
    """`expr` between a role's begin and end; an empty turn for None."""
    inner = () if expr is None else flatten(expr)
    return ExprList((RoleBegin(role), *inner, RoleEnd(role)))


def _options(**given: Any) -> SamplingOptions:
    options = SamplingOptions(**arguments.sampling(given, _GEN_NAMES))
    if options.stop_regex:
        from lmnb.runtime.stop_regex import check_stop_regexes  # it reads Unicode's tables by numpy

        check_stop_regexes(options.stop_regex)
    return options


def checked_choices(choices: Any) -> tuple[Any, ...]:
    """Texts and placeholders for some. ArgumentError for any others."""
    options = arguments.listed("choices", choices, "a list of texts")
    if not options or not all(isinstance(item, Placeholder) or (isinstance(item, str) and item) for item in options):
        raise ArgumentError(f"choices must be one or more non-empty texts, not {shown(list(options))}")
    arguments.num_choices(len(options))
    for item in options:
        if isinstance(item, str):
            check_text("each of choices", item)
    return options


def _checked_name(name: str | None) -> str | None:
    return None if name is None else arguments.variable_name(name)
