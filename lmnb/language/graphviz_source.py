"""DOT text as the `graphviz` library's object, which says what to do where the library or its `dot` is missing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lmnb.backends.remote.packages import require
from lmnb.errors import MissingPackageError

ADVICE = (
    "the program `dot` is not installed, so graphviz cannot draw: install it (Debian and Ubuntu: apt-get install "
    "graphviz; macOS: brew install graphviz; conda install graphviz), or use the DOT text, `.source`, elsewhere"
)


def graphviz_source(dot: str, name: str) -> Any:
    """A `graphviz.Source` of `dot`, whose files are called `name`. MissingPackageError without the library.

    Without `dot` a notebook shows the advice and the text; rendering raises MissingPackageError.
    """
    return _source_class()(dot, filename=f"{name}.gv")


@lru_cache(maxsize=1)
def _source_class() -> Any:
    """The subclass, made when it is first needed: the library is optional."""
    graphviz = require("graphviz", "a drawing by graphviz", "graphviz")

    class DotSource(graphviz.Source):  # type: ignore[misc, name-defined]
        """DOT text that a notebook shows as a picture, or with advice where it cannot be drawn."""

        def pipe(self, *args: Any, **kwargs: Any) -> Any:
            return _drawn(super().pipe, *args, **kwargs)

        def render(self, *args: Any, **kwargs: Any) -> Any:
            return _drawn(super().render, *args, **kwargs)

        def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **options: Any) -> dict[str, Any]:
            try:
                bundle: dict[str, Any] = super()._repr_mimebundle_(include, exclude, **options)
            except MissingPackageError as error:
                return {"text/plain": f"{error}\n\n{self.source}"}
            return bundle

    def _drawn(draw: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return draw(*args, **kwargs)
        except graphviz.ExecutableNotFound as error:
            raise MissingPackageError(ADVICE) from error

    return DotSource
