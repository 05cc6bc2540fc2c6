"""What GitHub leaves of the HTML in a notebook's outputs, as far as is known: what its published list lets through.

The list is that of its HTML pipeline (`sanitization_filter.rb`). Style sheets and scripts go with what is in them;
style attributes, classes and data addresses go; of other elements the words stay. Of a bundle, HTML comes first.
"""

from __future__ import annotations

import re

import bleach

_ELEMENTS = frozenset(
    "h1 h2 h3 h4 h5 h6 br b i strong em a pre code img tt div ins del sup sub p ol ul table thead tbody tfoot "  # noqa: SIM905
    "blockquote dl dt dd kbd q samp var hr ruby rt rp li tr td th s strike summary details caption figure figcaption "
    "abbr bdo cite dfn mark small span time wbr".split()
)
_OF_ALL = ["align", "alt", "aria-label", "border", "colspan", "dir", "height", "open", "role", "rowspan", "scope",
           "summary", "tabindex", "title", "valign", "value", "width"]  # fmt: skip
_GONE = re.compile(r"<(style|script)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)


def sanitized(html: str) -> str:
    """What is left of an output's HTML."""
    kept = bleach.clean(
        _GONE.sub("", html),
        tags=_ELEMENTS,
        attributes={"*": _OF_ALL, "a": ["href"], "img": ["src"]},
        protocols=["http", "https", "mailto"],
        strip=True,
    )
    return str(kept)
