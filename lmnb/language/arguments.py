"""What callers hand in, as the kind of value it has to be: ArgumentError with the argument's name for anything else.

Placeholders pass, since they have no value yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lmnb.errors import ArgumentError
from lmnb.language.placeholders import Placeholder
from lmnb.runtime.argument_checks import flag, number, shown, texts, token_ids, whole_number, whole_numbers


def sampling(options: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Sampling options, each as the kind of value it has to be. None stays; `names` are those that the caller knows.

    The caller's lists are read, never kept or changed.
    """
    names = names or {}
    return {
        name: value if value is None or _is_open(name, value) else _KINDS[name](names.get(name, name), value)
        for name, value in options.items()
    }


def _is_open(name: str, value: Any) -> bool:
    """Whether this is known only when the program runs. A list must be known before: who reads a placeholder as one
    gets its error."""
    return isinstance(value, Placeholder) and name not in _LISTS


_MOST_BRANCHES = 100_000  # of a fork, samples or choices: each takes some 10 kB


def fork_size(size: Any) -> int:
    """How many branches a fork has."""
    count = whole_number("fork(size)", size)
    if count < 1:
        raise ArgumentError(f"fork(size) must be at least 1, not {count}")
    _not_too_many("fork(size)", count, "fork in parts, or map the program over rows")
    return count


def num_samples(count: int) -> None:
    """ArgumentError unless one generation may have so many samples."""
    if count < 1:
        raise ArgumentError(f"n must be at least 1, not {count}")
    _not_too_many("n", count, "sample in parts, or map the program over rows")


def num_choices(count: int) -> None:
    """ArgumentError unless one select may have so many choices."""
    _not_too_many("the number of choices", count, "choose in parts, and then between what was chosen")


def _not_too_many(what: str, count: int, instead: str) -> None:
    if count > _MOST_BRANCHES:
        raise ArgumentError(f"{what} may be {_MOST_BRANCHES:,} at most, not {_counted(count)}: {instead}")


def _counted(count: int) -> str:
    return f"{count:,}" if count < 10**15 else shown(count)  # else cut short


def at_least_one(name: str, value: Any) -> int | None:
    """A count, or None."""
    if value is None:
        return None
    count = whole_number(name, value)
    if count < 1:
        raise ArgumentError(f"{name} must be a whole number of at least 1, not {count}")
    return count


def place(name: str, value: Any) -> int:
    """A place that is counted from 0."""
    number = whole_number(name, value)
    if number < 0:
        raise ArgumentError(f"{name} is counted from 0 and cannot be {number}")
    return number


def position_offsets(offsets: Any, size: int) -> tuple[int, ...] | None:
    """One number a branch, or None."""
    if offsets is None:
        return None
    name = "position_ids_offset"
    found = whole_numbers(name, listed(name, offsets, "a list of numbers"))
    if len(found) != size:
        raise ArgumentError(f"{name} needs one number a branch: {size}, not {len(found)}")
    return found


def listed(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """The items of a list, or of anything like one but text; `what` says what they are."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} must be {what}, not {shown(value)}")
    return tuple(value)


def variable_name(value: Any) -> str:
    """A variable's name."""
    if not isinstance(value, str):
        raise ArgumentError(f"a variable's name is text, not {shown(value)}; constant text is added with s += 'text'")
    return value


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    return token_ids(name, value if isinstance(value, Iterable) else (whole_number(name, value),))


_LISTS = ("stop", "stop_regex", "stop_token_ids")
_KINDS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("max_new_tokens", "min_new_tokens", "n", "top_k", "seed"), whole_number),
    **dict.fromkeys(("logprob_start_len", "top_logprobs_num"), whole_number),
    **dict.fromkeys(("temperature", "top_p", "min_p"), number),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), number),
    **dict.fromkeys(("ignore_eos", "return_logprob", "return_text_in_logprobs", "jump_forward"), flag),
    **dict.fromkeys(("stop", "stop_regex"), texts),
    "stop_token_ids": _token_ids,
}


def callback(caller: str, what: str, value: object) -> None:
    """ArgumentError unless `value` can be called; `caller` takes it to call it with each `what`."""
    if not callable(value):
        raise ArgumentError(f"{caller} takes a function that is called with each {what}, not {shown(value)}")
