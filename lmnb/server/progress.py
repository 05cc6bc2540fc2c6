"""What one request has made so far, from its events: text, tokens, log-probabilities and, at last, its completion."""

from __future__ import annotations

from lmnb.runtime.request import Completion, Event, FinishEvent, TokenLogprob


class Progress:
    """Grows with each event. `new_text` and `new_logprobs` are what the last events added."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.completion: Completion | None = None
        self._told_text = 0
        self._told_logprobs = 0

    def add(self, event: Event) -> None:
        """Take note. Raises the request's error."""
        if isinstance(event, FinishEvent):
            if event.error is not None:
                raise event.error
            self.completion = event.completion
            self.text = event.completion.text
            self.token_ids = list(event.completion.token_ids)
            self.logprobs = list(event.completion.logprobs)
            return
        self.text += event.text
        kept = len(self.token_ids) - event.num_replaced
        self.token_ids[kept:] = event.token_ids
        self.logprobs[kept:] = event.logprobs

    def take(self) -> tuple[str, list[TokenLogprob]]:
        """Text and log-probabilities since the last take. Tokens without text wait for the text that follows."""
        text = self.text[self._told_text :]
        if not text and self.completion is None:
            return "", []
        logprobs = self.logprobs[self._told_logprobs :]  # those of replaced tokens stay told
        self._told_text = len(self.text)
        self._told_logprobs = len(self.logprobs)
        return text, logprobs
