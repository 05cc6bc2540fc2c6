"""OpenAI's protocol: models, completions and chat completions, whole and streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lmnb.runtime.request import TokenLogprob
from lmnb.server.http_error import as_http_error, error_body
from lmnb.server.job import Answer, ClientGoneError, Job, Jobs
from lmnb.server.openai_request import Asked, read_chat, read_completion
from lmnb.server.progress import Progress

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

_FINISH = {"stop": "stop", "length": "length", "cancelled": "abort"}


class OpenAIApi:
    """Answers OpenAI's calls with one runtime's engine."""

    def __init__(self, runtime: Runtime, jobs: Jobs) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._created = int(time.time())

    def models(self) -> dict[str, Any]:
        """`/v1/models`."""
        model = {"id": self._runtime.name, "object": "model", "created": self._created, "owned_by": "lmnb"}
        return {"object": "list", "data": [model]}

    def completion(self, body: Any, is_gone: Callable[[], bool]) -> Any:
        """`/v1/completions`."""
        asked = read_completion(body, self._runtime)
        return self._answer(asked, _Completion(self._runtime, asked), is_gone)

    def chat(self, body: Any, is_gone: Callable[[], bool]) -> Any:
        """`/v1/chat/completions`."""
        asked = read_chat(body, self._runtime)
        return self._answer(asked, _Chat(self._runtime, asked), is_gone)

    def _answer(self, asked: Asked, form: _Form, is_gone: Callable[[], bool]) -> Any:
        job = Job(self._runtime, asked.requests, is_gone)
        states = [Progress(len(request.input_ids)) for request in asked.requests]
        if asked.stream:
            return Answer(job, self._stream(job, asked, states, form))
        with self._jobs.running(form.id, job):
            for index, event in job.events():
                states[index].add(event)
        return {
            **form.head(form.whole_kind),
            "choices": [form.whole(index, state) for index, state in enumerate(states)],
            "usage": _usage(states, asked),
        }

    def _stream(
        self, job: Job, asked: Asked, states: list[Progress], form: _Form
    ) -> Generator[dict[str, Any], None, None]:
        head = form.head(form.piece_kind)
        extra = {"usage": None} if asked.with_usage else {}
        with self._jobs.running(form.id, job):
            job.begin()
            try:
                for index in range(len(states)):
                    for choice in form.first(index):
                        yield {**head, "choices": [choice], **extra}
                for index, event in job.events():
                    state = states[index]
                    state.add(event)
                    text, logprobs = state.take()
                    if text or logprobs or state.completion is not None:
                        yield {**head, "choices": [form.piece(index, state, text, logprobs)], **extra}
                if asked.with_usage:
                    yield {**head, "choices": [], "usage": _usage(states, asked)}
            except ClientGoneError:
                raise
            except Exception as error:  # the answer has begun: the error is a part of it
                yield error_body(as_http_error(error))


class _Form:
    """How the two kinds of answer look."""

    prefix: str
    whole_kind: str
    piece_kind: str

    def __init__(self, runtime: Runtime, asked: Asked) -> None:
        self._runtime = runtime
        self._asked = asked
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def head(self, kind: str) -> dict[str, Any]:
        """What each answer and each chunk begins with."""
        return {"id": self.id, "object": kind, "created": self._created, "model": self._asked.model}

    def first(self, index: int) -> Iterator[dict[str, Any]]:
        """Choices of chunks that come before anything is generated."""
        yield from ()

    def whole(self, index: int, state: Progress) -> dict[str, Any]:
        """A finished choice."""
        raise NotImplementedError

    def piece(self, index: int, state: Progress, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """A choice of a chunk: what is new."""
        raise NotImplementedError

    def _finish(self, state: Progress) -> dict[str, Any]:
        done = state.completion
        if done is None:
            return {"finish_reason": None}
        return {"finish_reason": _FINISH.get(done.finish_reason, "stop"), "matched_stop": done.matched}


class _Completion(_Form):
    prefix = "cmpl"
    whole_kind = piece_kind = "text_completion"

    def first(self, index: int) -> Iterator[dict[str, Any]]:
        if self._asked.echo:
            yield {"index": index, "text": self._echo(index), "logprobs": None, "finish_reason": None}

    def whole(self, index: int, state: Progress) -> dict[str, Any]:
        before = self._echo(index)
        scored: list[TokenLogprob] = list(state.logprobs)
        if before and state.completion is not None:
            scored = [*state.completion.input_logprobs, *scored]
        return {
            "index": index,
            "text": before + state.text,
            "logprobs": self._logprobs(scored, 0) if self._asked.logprobs else None,
            **self._finish(state),
        }

    def piece(self, index: int, state: Progress, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        offset = len(self._echo(index)) + len(state.text) - len(text)
        told = self._logprobs(logprobs, offset) if self._asked.logprobs and logprobs else None
        return {"index": index, "text": text, "logprobs": told, **self._finish(state)}

    def _echo(self, index: int) -> str:
        if not self._asked.echo:
            return ""
        return self._asked.echo[index * self._asked.num_prompts // len(self._asked.requests)]

    def _logprobs(self, scored: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        tokens = [self._runtime.token_text(item.token_id) for item in scored]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [item.logprob for item in scored],
            "top_logprobs": [
                {self._runtime.token_text(token): value for token, value in item.top} if item.top else None
                for item in scored
            ],
            "text_offset": offsets,
        }


class _Chat(_Form):
    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    piece_kind = "chat.completion.chunk"

    def first(self, index: int) -> Iterator[dict[str, Any]]:
        yield {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def whole(self, index: int, state: Progress) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": state.text, "refusal": None},
            "logprobs": self._logprobs(state.logprobs) if self._asked.logprobs else None,
            **self._finish(state),
        }

    def piece(self, index: int, state: Progress, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        told = self._logprobs(logprobs) if self._asked.logprobs and logprobs else None
        return {"index": index, "delta": {"content": text} if text else {}, "logprobs": told, **self._finish(state)}

    def _logprobs(self, scored: Sequence[TokenLogprob]) -> dict[str, Any]:
        content = [
            {**self._token(item.token_id, item.logprob), "top_logprobs": [self._token(*pair) for pair in item.top]}
            for item in scored
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        data = self._runtime.get_tokenizer().token_bytes(token_id)
        return {"token": self._runtime.token_text(token_id), "bytes": list(data), "logprob": logprob}


def _usage(states: Sequence[Progress], asked: Asked) -> dict[str, Any]:
    """Tokens of the whole call: each prompt counts once, however many samples it has."""
    step = len(states) // asked.num_prompts
    prompts = sum(state.prompt_tokens for state in states[::step])
    generated = sum(len(state.token_ids) for state in states)
    cached = sum(state.completion.cached_tokens for state in states[::step] if state.completion is not None)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": generated,
        "total_tokens": prompts + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
