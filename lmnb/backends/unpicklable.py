"""What lives in one process, by its threads or connections: pickling it is refused, with what to do instead."""

from __future__ import annotations

from typing import Any, ClassVar

from lmnb.errors import PicklingError


class Unpicklable:
    """Base of such objects. `_instead`: what can be taken to another process in their place."""

    _instead: ClassVar[str]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PicklingError(
            f"{type(self).__name__} objects live in the process that made them and cannot be pickled or copied: "
            f"{self._instead}"
        )
