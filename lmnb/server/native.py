"""SGLang's native protocol: `/generate` and what belongs to it, as the released frontend speaks it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lmnb.backends.jinja_template import JinjaTemplate
from lmnb.errors import EngineClosedError
from lmnb.runtime.request import Constraint, Request, SamplingParams, TokenLogprob
from lmnb.server.fields import Fields
from lmnb.server.http_error import HttpError, as_http_error, error_body
from lmnb.server.job import Answer, ClientGoneError, Job, Jobs
from lmnb.server.progress import Progress

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

# Fields of the protocol that do nothing here: any value may come where None stands, else only one of these.
_IGNORED_SAMPLING: dict[str, Collection[Any] | None] = {
    "skip_special_tokens": None,
    "spaces_between_special_tokens": None,
    "stream_interval": None,
    "no_stop_trim": (False,),
    "structural_tag": (),
    "custom_params": (),
    "logit_bias": ({},),
}
_MEDIA = ("image_data", "video_data", "audio_data")
_IGNORED: dict[str, Collection[Any] | None] = {
    "priority": None,
    "extra_key": None,
    "log_metrics": None,
    "input_embeds": (),
    "lora_path": (),
    "session_params": (),
    "return_hidden_states": (False,),
    "token_ids_logprob": ([],),
    "custom_logit_processor": (),
}


@dataclass(frozen=True)
class Options:
    """How a call is to be answered."""

    rid: str
    many: bool  # a list of results, even of one
    stream: bool
    return_logprob: bool
    with_text: bool
    top: int


class Native:
    """Answers native calls with one runtime's engine."""

    def __init__(self, runtime: Runtime, jobs: Jobs) -> None:
        self._runtime = runtime
        self._jobs = jobs

    def check_health(self) -> None:
        """`/health`. EngineClosedError if nothing can be generated any more."""
        if self._runtime.closed:
            raise EngineClosedError(f"the runtime of {self._runtime.name!r} was shut down, or its engine has died")

    def model_info(self) -> dict[str, Any]:
        """`/get_model_info`."""
        name, template = self._runtime.name, self._runtime.chat_template
        return {
            "model_path": name,
            "tokenizer_path": name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            # Beyond SGLang's answer: lmnb's own clients write the model's template instead of guessing it.
            "chat_template": template.to_wire() if isinstance(template, JinjaTemplate) else {"name": template.name},
        }

    def server_info(self) -> dict[str, Any]:
        """`/server_info`: the engine's counters, without anything secret."""
        from importlib.metadata import version

        return {"model_path": self._runtime.name, "version": version("lmnb"), **self._runtime.get_server_info()}

    def flush(self) -> bool:
        """`/flush_cache`: False while requests run or wait."""
        return self._runtime.flush_cache()

    def abort(self, body: Any) -> None:
        """`/abort_request`: `{"rid": ...}` or `{"abort_all": true}`."""
        fields = Fields(body)
        rid = fields.text("rid", "") or ""
        if not rid and not fields.flag("abort_all"):
            raise HttpError(400, "name the request to abort by rid, or send abort_all", "rid")
        self._jobs.abort(rid)

    def generate(self, body: Any, is_gone: Callable[[], bool]) -> Any:
        """`/generate`: a result, a list of results, or (with `stream`) an `Answer` of cumulative results."""
        requests, options = self._parse(Fields(body))
        job = Job(self._runtime, requests, is_gone)
        states = [Progress(len(request.input_ids)) for request in requests]
        if options.stream:
            return Answer(job, self._stream(job, requests, states, options))
        return self._whole(job, requests, states, options)

    def _whole(self, job: Job, requests: list[Request], states: list[Progress], options: Options) -> Any:
        started = time.monotonic()
        with self._jobs.running(options.rid, job):
            for index, event in job.events():
                states[index].add(event)
        results = [
            self._result(request, state, options, index, started, job)
            for index, (request, state) in enumerate(zip(requests, states, strict=True))
        ]
        return results if options.many else results[0]

    def _stream(
        self, job: Job, requests: list[Request], states: list[Progress], options: Options
    ) -> Generator[dict[str, Any], None, None]:
        started = time.monotonic()
        with self._jobs.running(options.rid, job):
            job.begin()
            try:
                for index, event in job.events():
                    state = states[index]
                    state.add(event)
                    text, _ = state.take()
                    if not text and state.completion is None:
                        continue
                    result = self._result(requests[index], state, options, index, started, job)
                    yield {"index": index, **result} if options.many else result
            except ClientGoneError:
                raise
            except Exception as error:  # the answer has begun: the error is a part of it
                yield error_body(as_http_error(error))

    def _parse(self, fields: Fields) -> tuple[list[Request], Options]:
        prompts, many = self._prompts(fields)
        rid = fields.get("rid") or secrets.token_hex(16)
        if not isinstance(rid, str):
            raise fields.wrong("rid", "text")
        sampling_list = fields.get("sampling_params", {})
        per_prompt = sampling_list if isinstance(sampling_list, list) else [sampling_list] * len(prompts)
        if len(per_prompt) != len(prompts):
            raise HttpError(400, "sampling_params must be one object, or one for each prompt", "sampling_params")
        return_logprob = fields.flag("return_logprob")
        top = fields.whole("top_logprobs_num", 0)
        start = fields.whole("logprob_start_len", -1)
        with_text = fields.flag("return_text_in_logprobs")
        stream = fields.flag("stream")
        for name in _MEDIA:
            if fields.get(name):
                raise HttpError(400, f"{name} cannot be read: this server's model reads text only", name)
        fields.allow(_IGNORED)
        fields.finish()
        requests: list[Request] = []
        for ids, values in zip(prompts, per_prompt, strict=True):
            params, count = sampling_params(Fields(values, "sampling_params"))
            params = self._runtime.sampling(
                replace(params, return_logprob=return_logprob, top_logprobs_num=top if return_logprob else 0)
            )
            at = min(start, len(ids) - 1) if return_logprob and start >= 0 else None
            many = many or count > 1
            requests += [Request(input_ids=ids, sampling=_nth(params, i), logprob_start=at) for i in range(count)]
        return requests, Options(rid, many, stream, return_logprob, with_text, top)

    def _prompts(self, fields: Fields) -> tuple[list[tuple[int, ...]], bool]:
        text, ids = fields.get("text"), fields.get("input_ids")
        if (text is None) == (ids is None):
            raise HttpError(400, "send either text or input_ids", "text")
        if text is not None:
            texts = text if isinstance(text, list) else [text]
            if not texts or not all(isinstance(item, str) for item in texts):
                raise fields.wrong("text", "text or a list of texts")
            return [self._runtime.encode_prompt(item) for item in texts], isinstance(text, list)
        many = bool(ids) and isinstance(ids, list) and isinstance(ids[0], list)
        lists = ids if many else [ids]
        return [Fields({"input_ids": item}).ids("input_ids") for item in lists], many

    def _result(
        self, request: Request, state: Progress, options: Options, index: int, started: float, job: Job
    ) -> dict[str, Any]:
        done = state.completion
        meta: dict[str, Any] = {
            "id": f"{options.rid}_{index}" if options.many else options.rid,
            "finish_reason": None if done is None else self._finish_reason(request, state, job),
            "prompt_tokens": state.prompt_tokens,
            "completion_tokens": len(state.token_ids),
            "cached_tokens": 0 if done is None else done.cached_tokens,
            "weight_version": "default",
            "e2e_latency": time.monotonic() - started,
        }
        if options.return_logprob:
            before = done.input_logprobs if done is not None else ()
            meta["input_token_logprobs"] = self._triples(before, options)
            meta["output_token_logprobs"] = self._triples(state.logprobs, options)
            if options.top:
                meta["input_top_logprobs"] = self._tops(before, options)
                meta["output_top_logprobs"] = self._tops(state.logprobs, options)
        return {"text": state.text, "output_ids": list(state.token_ids), "meta_info": meta}

    def _finish_reason(self, request: Request, state: Progress, job: Job) -> dict[str, Any]:
        assert state.completion is not None
        reason = state.completion.finish_reason
        if reason == "stop":
            return {"type": "stop", "matched": state.completion.matched}
        if reason == "length":
            return {"type": "length", "length": request.sampling.max_new_tokens}
        told = "aborted by a request" if job.aborted else "cancelled"
        return {"type": "abort", "message": told}

    def _triples(self, logprobs: Any, options: Options) -> list[list[Any]]:
        return [[item.logprob, item.token_id, self._text(item.token_id, options)] for item in logprobs]

    def _tops(self, logprobs: list[TokenLogprob] | tuple[TokenLogprob, ...], options: Options) -> list[Any]:
        return [
            [[value, token, self._text(token, options)] for token, value in item.top] if item.top else None
            for item in logprobs
        ]

    def _text(self, token_id: int, options: Options) -> str | None:
        return self._runtime.token_text(token_id) if options.with_text else None


def sampling_params(fields: Fields) -> tuple[SamplingParams, int]:
    """The native protocol's sampling parameters, and the number of samples."""
    count = fields.count("n")
    top_k = fields.whole("top_k", -1)
    seed = fields.seed("sampling_seed" if "sampling_seed" in fields else "seed")
    params = SamplingParams(
        max_new_tokens=fields.whole("max_new_tokens", 128),
        min_new_tokens=fields.whole("min_new_tokens", 0),
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=-1 if top_k >= 1 << 30 else top_k,  # how SGLang writes "off" inside
        min_p=fields.number("min_p", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        seed=seed,
        stop=fields.strings("stop"),
        stop_regex=fields.strings("stop_regex"),
        stop_token_ids=fields.ids("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        constraint=_constraint(fields),
    )
    fields.allow(_IGNORED_SAMPLING)
    fields.finish()
    return params, count


def _constraint(fields: Fields) -> Constraint | None:
    kinds: tuple[Literal["regex", "json_schema", "ebnf"], ...] = ("regex", "json_schema", "ebnf")
    found = [Constraint(kind, source) for kind in kinds if (source := fields.text(kind)) is not None]
    if len(found) > 1:
        raise HttpError(400, f"{found[0].kind} and {found[1].kind} exclude each other; send one", found[0].kind)
    return found[0] if found else None


def _nth(params: SamplingParams, index: int) -> SamplingParams:
    """The sample of that index draws by a seed of its own."""
    return replace(params, seed=params.seed + index) if index and params.seed is not None else params
