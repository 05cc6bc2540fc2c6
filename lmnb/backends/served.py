"""What all contexts of one local runtime share: the engine, the tokenizer's codec, the chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from lmnb.backends.templates import ChatTemplate
from lmnb.backends.token_codec import TokenCodec
from lmnb.runtime.request import SamplingParams

if TYPE_CHECKING:
    from lmnb.runtime.engine import Engine


@dataclass(frozen=True)
class Served:
    """What all contexts of one runtime share."""

    engine: Engine
    codec: TokenCodec
    template: ChatTemplate

    @cached_property
    def start_ids(self) -> tuple[int, ...]:
        """What an empty prompt starts from: the tokenizer's own beginning, else a document separator or end
        token (behind which any text may come), else nothing."""
        tokenizer = self.codec.tokenizer
        if tokenizer.bos_ids:
            return tokenizer.bos_ids
        separator = self.codec.single_marker("<|endoftext|>")
        if separator is not None:
            return (separator,)
        ends = sorted(tokenizer.eos_ids)
        bos = self.codec.single_marker(tokenizer.template_variables.get("bos_token", "") or " ")
        return tuple(ends[:1]) or (() if bos is None else (bos,))

    @cached_property
    def marker_stops(self) -> dict[str, int]:
        """The template's stops that are (or begin with) a special token, and that token. They end a text by it
        alone: the same signs spelled out in other tokens are data."""
        firsts = {stop: self.codec.split_trusted(stop)[0] for stop in self.template.stop}
        return {stop: first for stop, first in firsts.items() if isinstance(first, int)}

    def sampling(self, params: SamplingParams, *, template_stops: bool = True) -> SamplingParams:
        """`params` with the template's stops; special tokens that do not end a turn are never sampled, so a
        model cannot open a role. Under `ignore_eos` the turn has no end: neither the template's stops nor any
        special token, so that the text has the length that was asked for and holds no marker."""
        tokenizer, markers = self.codec.tokenizer, self.marker_stops
        if params.ignore_eos:
            suppressed = tokenizer.special_ids | tokenizer.eos_ids
            stop = tuple(item for item in params.stop if item not in self.template.stop)
            stop_ids: tuple[int, ...] = ()
        else:
            stops = (*params.stop, *(self.template.stop if template_stops else ()))
            own = [self.codec.single_marker(stop) for stop in params.stop if stop not in markers]
            ids = [*(markers[stop] for stop in stops if stop in markers), *(i for i in own if i is not None)]
            stop_ids = tuple(dict.fromkeys((*params.stop_token_ids, *ids)))
            stop = tuple(dict.fromkeys(item for item in stops if item not in markers))
            suppressed = tokenizer.special_ids - tokenizer.eos_ids - set(stop_ids)
        return replace(
            params,
            stop=stop,
            stop_token_ids=stop_ids,
            suppress_token_ids=tuple(sorted(suppressed.union(params.suppress_token_ids))),
        )
