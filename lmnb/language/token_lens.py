"""The template lens: what the model really saw, token by token, for people to read."""

from __future__ import annotations

import html
from typing import cast

from lmnb.backends.base import Backend, Context, PromptToken, TokenContext
from lmnb.errors import ProgramError

# Soft enough for light and dark pages alike.
_COLOURS = {
    "template": "rgba(128, 128, 128, 0.25)",
    "given": "rgba(66, 133, 244, 0.20)",
    "generated": "rgba(52, 168, 83, 0.28)",
}
_VISIBLE = str.maketrans({"\n": "↵\n", "\t": "⇥\t"})


class Tokens(list[PromptToken]):
    """A prompt's tokens in order. A notebook shows each as a box, coloured by where it came from."""

    @property
    def text(self) -> str:
        """All token strings, one after the other."""
        return "".join(token.text for token in self)

    def __str__(self) -> str:
        return "|".join(token.text for token in self)

    def _repr_html_(self) -> str:
        legend = " ".join(
            f'<span style="background:{colour};padding:0 3px">{source}</span>' for source, colour in _COLOURS.items()
        )
        boxes = "".join(
            f'<span title="{token.id}, {token.source}" style="background:{_COLOURS[token.source]};'
            f'outline:1px solid rgba(128, 128, 128, 0.4);unicode-bidi:isolate">'
            f"{html.escape(token.text.translate(_VISIBLE))}</span>"
            for token in self
        )
        return (
            f'<div class="lmnb-lens mathjax_ignore"><small>{len(self)} tokens: {legend}</small>'
            f'<pre style="white-space:pre-wrap;line-height:1.7">{boxes}</pre></div>'
        )


def read_tokens(backend: Backend, context: Context | None) -> list[PromptToken]:
    """The tokens of a context (None: of an empty prompt). ProgramError if the backend has none to show."""
    if not backend.capabilities.token_lens:
        raise ProgramError(
            f"{backend.name} does not tell the tokens of its prompts; run the program on lmnb.Runtime to see them"
        )
    return cast(TokenContext, context or backend.new_context()).tokens()
