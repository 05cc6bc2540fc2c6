"""Prompts whose tokens do not all see what stands before them: what each part sees, and at which position it stands.

A prompt is plain unless a program joins branches by their caches (each branch has seen the common beginning and
itself) or moves a branch's positions. The KV of such a token is another than that of the same token in plain text,
so it has another key in the radix cache: nothing that is asked exactly can ever find it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmnb.errors import ArgumentError

Range = tuple[int, int]  # indices [start, end)


@dataclass(frozen=True, slots=True)
class Section:
    """Tokens from index `start` up to the next section's. Each sees the ranges `sees`, all below `start`, and the
    section up to itself; where a model has a sliding window, the last so many of those. The first one stands at rotary
    position `position`, the others follow it."""

    start: int
    position: int
    sees: tuple[Range, ...]

    def until(self, end: int) -> tuple[Range, ...]:
        """What a token at index `end` would see if it continued this section."""
        return merged([*self.sees, (self.start, end)])

    def at(self, index: int) -> Section:
        """The rest of the section from `index` on, as a section."""
        return Section(index, self.position + index - self.start, self.until(index))


_BEGINNING = Section(0, 0, ())


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """Sections in order of their starts; what lies before the first is plain. Only what is not plain is listed, so
    equal layouts are equal values. A section may start where the prompt ends: what is generated belongs to it."""

    sections: tuple[Section, ...] = ()

    @classmethod
    def of(cls, sections: Iterable[Section]) -> PromptLayout:
        """A layout without the sections that only continue the one before them."""
        kept: list[Section] = []
        for section in sections:
            while kept and kept[-1].start == section.start:
                kept.pop()  # the earlier one is empty
            if (kept[-1] if kept else _BEGINNING).at(section.start) != section:
                kept.append(section)
        return cls(tuple(kept))

    def check(self, num_tokens: int) -> None:
        """ArgumentError unless this can lay out a prompt of so many tokens and what is generated behind it."""
        start = -1
        for section in self.sections:
            if not start < section.start <= num_tokens or section.position < 0:
                raise ArgumentError(f"a prompt of {num_tokens} tokens cannot have {section} here")
            if section.sees != merged(section.sees) or any(not 0 <= a < b <= section.start for a, b in section.sees):
                raise ArgumentError(f"{section} must see ranges of earlier tokens, in order")
            start = section.start
        last = self.sections[-1] if self.sections else _BEGINNING
        if last.until(num_tokens) != merged([(0, num_tokens)]):
            raise ArgumentError("a prompt's last section must see all that is before it")

    def number_at(self, index: int) -> int:
        """Which section a token belongs to; -1: none."""
        number = -1
        for number, section in enumerate(self.sections):
            if section.start > index:
                return number - 1
        return number

    def section_at(self, index: int) -> Section:
        """The section a token belongs to; the plain beginning counts as one."""
        number = self.number_at(index)
        return self.sections[number] if number >= 0 else _BEGINNING

    def end_at(self, index: int, num_tokens: int) -> int:
        """Where the section of a token ends."""
        following = self.number_at(index) + 1
        return min(num_tokens, self.sections[following].start) if following < len(self.sections) else num_tokens

    def position(self, index: int) -> int:
        """One token's rotary position."""
        return self.section_at(index).at(index).position

    def end_position(self, num_tokens: int) -> int:
        """One more than the highest position of the first `num_tokens` tokens."""
        plain = self.sections[0].start if self.sections else num_tokens
        return max(
            [plain, *(self.section_at(s.start).at(self.end_at(s.start, num_tokens)).position for s in self.sections)]
        )

    def unpredicted(self, index: int) -> bool:
        """Whether the token before this one has not been seen by it, so that its logits mean nothing here."""
        section = self.section_at(index)
        return index == section.start > 0 and (not section.sees or section.sees[-1][1] != index)

    def behind(self, count: int) -> PromptLayout:
        """The same behind `count` plain tokens, which everything sees."""
        if not count or not self.sections:
            return self
        return PromptLayout.of(
            Section(section.start + count, section.position + count, merged([(0, count), *_moved(section.sees, count)]))
            for section in self.sections
        )

    def branches_with(self, start: int, num_tokens: int) -> Iterator[tuple[tuple[Range, ...], PromptLayout]]:
        """`branch_at` of the section that starts at `start`, and of those after it that see it but not everything."""
        for section in self.sections[self.number_at(start) :]:
            is_whole = section.sees == merged([(0, section.start)])
            if section.start == start or (not is_whole and any(a <= start < b for a, b in section.sees)):
                branch = self.branch_at(section.start, num_tokens)
                if branch is not None:
                    yield branch

    def branch_at(self, index: int, num_tokens: int) -> tuple[tuple[Range, ...], PromptLayout] | None:
        """The section of a token as the prompt of its own that it was in a branch: which tokens that has (all that
        the section sees, and itself), and their layout. None if what it sees was no prompt by itself."""
        section = self.section_at(index)
        ranges = section.until(self.end_at(index, num_tokens))
        places: list[tuple[int, int, int]] = []  # old start, old end, new start
        for start, end in ranges:
            places.append((start, end, places[-1][2] + places[-1][1] - places[-1][0] if places else 0))

        def there(a: int, b: int) -> Range | None:
            return next(
                ((a - start + new, b - start + new) for start, end, new in places if start <= a < b <= end), None
            )

        sections: list[Section] = []
        for start, end, new in places:
            at = start
            while at < end:
                part = self.section_at(at).at(at)
                seen = [there(*each) for each in part.sees]
                if any(each is None for each in seen):
                    return None
                sections.append(Section(new + at - start, part.position, merged([each for each in seen if each])))
                at = self.end_at(at, end)
        return ranges, PromptLayout.of(sections)


PLAIN = PromptLayout()


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges in order, without empty ones; those that touch are one."""
    found: list[Range] = []
    for start, end in ranges:
        if start < end and found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def _moved(ranges: Iterable[Range], count: int) -> list[Range]:
    return [(start + count, end + count) for start, end in ranges]
