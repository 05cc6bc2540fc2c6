"""How many tokens a backend's calls took, as its server counts (and bills) them. Thread-safe."""

from __future__ import annotations

import threading


class TokenUsage:
    """Sums since the start, or since `reset`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from nothing."""
        with self._lock:
            self.calls = 0
            self.prompt_tokens = 0
            self.completion_tokens = 0

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        """One call more."""
        with self._lock:
            self.calls += 1
            self.prompt_tokens += prompt_tokens
            self.completion_tokens += completion_tokens

    def __repr__(self) -> str:
        return (
            f"TokenUsage(calls={self.calls}, prompt_tokens={self.prompt_tokens}, "
            f"completion_tokens={self.completion_tokens})"
        )
