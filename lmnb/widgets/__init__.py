"""Views of runs and of the cache: widgets, HTML and text. They draw events and know nothing of engines."""

from lmnb.widgets.detect import ViewMode, detect_mode, prefer_mode
from lmnb.widgets.output import freeze_outputs
from lmnb.widgets.run_view import RunSource, RunView
from lmnb.widgets.tree_source import CacheSource
from lmnb.widgets.tree_view import CacheView

__all__ = [
    "CacheSource",
    "CacheView",
    "RunSource",
    "RunView",
    "ViewMode",
    "detect_mode",
    "freeze_outputs",
    "prefer_mode",
]
