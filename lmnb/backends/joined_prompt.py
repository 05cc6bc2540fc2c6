"""What a branch adds to the prompt of its parent when their caches are joined: its tokens since the fork, and how they
are laid out there. It knows nothing of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmnb.backends.base import TokenSource
from lmnb.backends.prefix import common_prefix_length
from lmnb.backends.token_codec import TokenCodec
from lmnb.errors import ProgramError
from lmnb.runtime.prompt_layout import PromptLayout, Range, Section, merged


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens, where each came from, and their layout."""

    ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    layout: PromptLayout


def joined(parent: Prompt, branches: Sequence[tuple[Prompt, tuple[int, ...]]], codec: TokenCodec) -> Prompt:
    """The parent's prompt with what each branch has said since the fork, in order, and room to go on.

    Each branch comes with the tokens that it was forked with. It keeps its positions and sees what it has seen; what
    follows sees everything and stands behind the branch that reaches furthest. Branches that have said nothing add
    nothing. ProgramError if a branch's tokens do not tell what was said before the fork and what after.
    """
    parent, branches = _as_branches_begin(parent, branches, codec)
    ids, sources, sections = list(parent.ids), list(parent.sources), list(parent.layout.sections)
    end = parent.layout.end_position(len(ids))
    for branch, forked in branches:
        part = _Part.of(branch, forked, parent.ids, codec)
        if part.ids:
            end = max(end, part.end_position)
            sections += part.sections(base=len(ids))
            ids += part.ids
            sources += part.sources
    if len(ids) > len(parent.ids):
        sections.append(Section(len(ids), end, merged([(0, len(ids))])))
    return Prompt(tuple(ids), tuple(sources), PromptLayout.of(sections))


def _as_branches_begin(
    parent: Prompt, branches: Sequence[tuple[Prompt, tuple[int, ...]]], codec: TokenCodec
) -> tuple[Prompt, Sequence[tuple[Prompt, tuple[int, ...]]]]:
    """The same with the parent's last tokens as most branches have them, if it has said nothing since the fork.

    Two line breaks may be one token at the end of a text and two before a word: then it is the branches' form that was
    computed, and the one that text added to the parent would have given.
    """
    spoken = [branch for branch, forked in branches if branch.ids != forked]
    if not spoken or any(forked != parent.ids for _, forked in branches):
        return parent, branches
    size = len(codec.bytes_of(parent.ids))
    begun = [_beginning(branch.ids, size, codec) for branch in spoken]
    ids = max(begun, key=begun.count) or parent.ids
    kept = common_prefix_length([ids, parent.ids])
    last_seam = parent.layout.sections[-1].start if parent.layout.sections else 0
    if ids == parent.ids or kept < last_seam or codec.bytes_of(ids) != codec.bytes_of(parent.ids):
        return parent, branches
    like = next(branch for branch in spoken if branch.ids[: len(ids)] == ids)
    whole = Prompt(ids, parent.sources[:kept] + like.sources[kept : len(ids)], parent.layout)
    return whole, [(branch, ids if branch.ids != parent.ids else branch.ids) for branch, _ in branches]


def _beginning(ids: tuple[int, ...], size: int, codec: TokenCodec) -> tuple[int, ...]:
    """The tokens of the first `size` bytes; none if no token ends there."""
    count = total = 0
    while total < size and count < len(ids):
        total += len(codec.token_bytes(ids[count]))
        count += 1
    return ids[:count] if total == size else ()


@dataclass(frozen=True, slots=True)
class _Part:
    """What a branch has said: the branch's tokens from `cut` on, and before them `num_fresh` that stand for the rest
    of a token in which the parent's text and the branch's meet (those were never computed). `num_seen`: how many of
    the parent's tokens it goes on from."""

    ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    layout: PromptLayout  # of the branch
    num_branch_tokens: int
    num_forked: int
    num_seen: int
    cut: int
    num_fresh: int

    @classmethod
    def of(cls, branch: Prompt, forked: tuple[int, ...], parent_ids: tuple[int, ...], codec: TokenCodec) -> _Part:
        """Where the branch's own text begins."""
        cut, fresh = len(forked), list[int]()
        if branch.ids[:cut] != forked:
            cut, fresh = _rest_of_shared_token(branch.ids, forked, codec)
        given: TokenSource = "given"
        return cls(
            ids=(*fresh, *branch.ids[cut:]),
            sources=(given,) * len(fresh) + branch.sources[cut:],
            layout=branch.layout,
            num_branch_tokens=len(branch.ids),
            num_forked=len(forked),
            num_seen=common_prefix_length([forked, parent_ids]),
            cut=cut,
            num_fresh=len(fresh),
        )

    @property
    def _moved(self) -> int:
        """By how many positions the tokens from `cut` on stand further than they did in the branch."""
        return self.num_forked + self.num_fresh - self.cut

    @property
    def end_position(self) -> int:
        """One more than the highest position."""
        return self.layout.end_position(self.num_branch_tokens) + self._moved

    def sections(self, base: int) -> list[Section]:
        """The part's sections where its first token has index `base` in the parent."""
        first = self.layout.section_at(self.num_forked).at(self.num_forked)
        found = [Section(base, first.position, self._ranges(first.sees, base))]
        for section in self.layout.sections:
            if section.start > self.num_forked:
                start = base + self.num_fresh + section.start - self.cut
                found.append(Section(start, section.position + self._moved, self._ranges(section.sees, base)))
        return found

    def _ranges(self, ranges: Sequence[Range], base: int) -> tuple[Range, ...]:
        """Ranges of the branch's indices, as the parent's."""
        found: list[Range] = []
        for start, end in ranges:
            found.append((start, min(end, self.num_seen)))
            if end > self.num_forked:
                moved = base + self.num_fresh - self.cut
                found.append((base if start <= self.num_forked else start + moved, end + moved))
        return merged(found)


def _rest_of_shared_token(ids: tuple[int, ...], forked: tuple[int, ...], codec: TokenCodec) -> tuple[int, list[int]]:
    """The branch's first text made its last inherited tokens others. Where its own whole tokens begin, and new tokens
    for its text before them."""
    before = codec.bytes_of(forked)
    cut = common_prefix_length([ids, forked])
    while len(codec.bytes_of(ids[:cut])) < len(before) and cut < len(ids):
        cut += 1
    while cut <= len(ids):
        data = codec.bytes_of(ids[:cut])
        try:
            rest = data[len(before) :].decode()
        except UnicodeDecodeError:
            cut += 1
            continue
        if data.startswith(before):
            return cut, codec.encode_inside(rest) if rest else []
        break
    raise ProgramError(
        "a branch's first words became one token with what stands before the fork, and cannot be told apart; end the "
        "text before the fork with a space or a new line, or leave out approximate=True"
    )
