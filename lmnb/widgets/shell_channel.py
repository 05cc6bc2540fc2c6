"""Lets no request of a front end get lost: what ipykernel 7.4 does about its shell channel, for 7.0 to 7.3.

Those write a reply past the stream that reads the socket, which can swallow the only sign that a request has come. It
then waits for ever, and so does all that follows it: the click on a button as well as the next cell. A live view asks
things while its cell ends, so this would happen to its users first.
"""

from __future__ import annotations

import threading
from typing import Any

from lmnb.widgets.detect import current_shell


def mend_shell_channel() -> None:
    """Have the running kernel write its replies by the stream that reads the requests. Any thread; safe to repeat.

    Nothing is done where there is no kernel, or one that needs no mending.
    """
    kernel: Any = getattr(current_shell(), "kernel", None)
    channel = getattr(kernel, "shell_channel_thread", None)
    if channel is None:
        return
    # The property makes the manager, if the kernel has not begun yet; that is for the main thread alone.
    manager = channel.manager if threading.current_thread() is threading.main_thread() else channel._manager
    if hasattr(manager, "_shell_socket"):
        manager._shell_socket = kernel.shell_stream
