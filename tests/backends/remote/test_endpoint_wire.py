"""What `RuntimeEndpoint` sends, byte for byte, and what it makes of answers that servers give on bad days."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from stub_server import Answer, Asked, Stub, stub_server

import lmnb as sgl
from lmnb.backends.remote.endpoint import RuntimeEndpoint
from lmnb.backends.remote.endpoint_scoring import RemoteToken, attribute
from lmnb.backends.remote.streamed_text import StreamedText
from lmnb.backends.remote.token_texts import TokenTexts
from lmnb.errors import GenerationError, RemoteError

INFO = {"model_path": "stub/Qwen2-7B-Instruct", "tokenizer_path": "stub", "is_generation": True}


def result(text: str, reason: Any = None, **meta: Any) -> dict[str, Any]:
    known = {"id": "r", "finish_reason": reason, "prompt_tokens": 3, "completion_tokens": len(text), "cached_tokens": 1}
    return {"text": text, "meta_info": {**known, **meta}}


STOP = {"type": "stop", "matched": "!"}


def serving(*answers: Answer) -> Any:
    """A server that gives these answers to `/generate`, in order; the last one again and again."""
    left = list(answers)

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer(INFO)
        if asked.path != "/generate":
            return Answer("", status=404)
        return left.pop(0) if len(left) > 1 else left[0]

    return stub_server(rule)


@sgl.function
def ask(s: Any, **options: Any) -> None:
    s += "Hi {x} é" + sgl.gen("x", **options)


def run(stub: Stub, **options: Any) -> Any:
    with RuntimeEndpoint(stub.url, api_key="key-123", retries=2) as endpoint:
        state = ask.run(**options, backend=endpoint)
        state.error()  # waits for the end, good or bad
        return state


def test_the_body_of_a_generation() -> None:
    with serving(Answer(events=(result("a"), result("ab", STOP)))) as stub:
        state = run(stub, max_tokens=7, stop=["!", "??"], temperature=0.5, top_k=4, min_tokens=1)
        assert state["x"] == "ab"
        asked = stub.asked[-1]
        rid = asked.json["rid"]
        expected = (
            '{"text":"Hi {x} é","sampling_params":{"skip_special_tokens":true,"spaces_between_special_tokens":true,'
            '"max_new_tokens":7,"min_new_tokens":1,"n":1,"stop":["!","??","<|im_end|>"],"stop_token_ids":[],'
            '"temperature":0.5,"top_p":1.0,"top_k":4,"min_p":0.0,"frequency_penalty":0.0,"presence_penalty":0.0,'
            f'"ignore_eos":false,"regex":null,"json_schema":null}},"stream":true,"rid":"{rid}"}}'
        )
        assert asked.body.decode() == expected
        assert asked.headers["Authorization"] == "Bearer key-123"
        assert asked.headers["Content-Type"] == "application/json"


def test_constraints_and_logprobs_on_the_wire() -> None:
    tokens = {"output_token_logprobs": [[-0.5, 7, "ab"]], "output_top_logprobs": [[[-0.5, 7, "ab"]]]}
    with serving(Answer(events=(result("ab", STOP, **tokens),))) as stub:
        state = run(stub, regex="a+b", return_logprob=True, top_logprobs_num=1, seed=3, stop_regex="x+")
        sent = stub.asked[-1].json
        assert sent["sampling_params"]["regex"] == "a+b"
        assert sent["sampling_params"]["stop_regex"] == ["x+"]
        assert sent["sampling_params"]["sampling_seed"] == 3
        assert [sent[name] for name in ("return_logprob", "top_logprobs_num", "return_text_in_logprobs")] == [
            True,
            1,
            True,
        ]
        assert "logprob_start_len" not in sent
        meta = state.get_meta_info("x")
        assert meta["output_token_logprobs"][0][:2] == [-0.5, 7]


def test_the_hint_before_a_fork() -> None:
    @sgl.function
    def branches(s: Any) -> None:
        s += "prefix"
        for branch in s.fork(2):
            branch += sgl.gen("x", max_tokens=1)

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer(INFO)
        one = result("a", {"type": "length", "length": 1})
        return Answer(events=(one,)) if asked.json.get("stream") else Answer(one)

    with stub_server(rule) as stub, RuntimeEndpoint(stub.url) as endpoint:
        branches.run(backend=endpoint).sync()
        assert stub.asked[1].body == b'{"text":"prefix","sampling_params":{"max_new_tokens":0}}'
        assert "Authorization" not in stub.asked[1].headers


def test_the_bodies_of_a_select() -> None:
    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer(INFO)
        text = asked.json.get("text")
        if isinstance(text, str):
            return Answer(result("", {"type": "length", "length": 0}, prompt_tokens=6))
        rows = [
            [[None, 1, "er"], [-1.0, 2, ":"], [-0.5, 3, " yes"]],
            [[None, 1, "er"], [-1.0, 2, ":"], [-2.0, 4, " n"], [0.0, 5, "o"]],
        ]
        return Answer([result("", STOP, input_token_logprobs=row) for row in rows])

    with stub_server(rule) as stub, RuntimeEndpoint(stub.url) as endpoint:

        @sgl.function
        def pick(s: Any) -> None:
            s += "Answer:" + sgl.select("a", [" yes", " no"])

        state = pick.run(backend=endpoint)
        assert state["a"] == " yes"
        assert [asked.body.decode() for asked in stub.asked[1:]] == [
            '{"text":"Answer:","sampling_params":{"max_new_tokens":0}}',
            '{"text":["Answer: yes","Answer: no"],"sampling_params":{"max_new_tokens":0,"temperature":0},'
            '"return_logprob":true,"return_text_in_logprobs":true,"logprob_start_len":4}',
        ]
        meta = state.get_meta_info("a")
        assert meta is not None
        # The prompt's own token is in no mean, and a log-probability of exactly 0 is in it.
        assert meta["normalized_prompt_logprobs"] == [-0.5, -1.0]


def test_a_busy_server_is_asked_again() -> None:
    good = Answer(events=(result("ab", STOP),))
    with serving(Answer({"error": {"message": "overloaded"}}, status=503), Answer("", status=502), good) as stub:
        assert run(stub)["x"] == "ab"
        assert len(stub.bodies("/generate")) == 3


def test_a_server_that_never_answers_is_not_waited_for_without_end() -> None:
    hold = threading.Event()

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer(INFO)
        hold.wait(60)
        return Answer(status=500)

    with stub_server(rule) as stub, RuntimeEndpoint(stub.url, timeout=1.5, retries=2) as endpoint:
        try:
            states = ask.run_batch([{}, {}], backend=endpoint)
            assert all("broke off" in str(state.error()) for state in states)
            assert (
                len([asked for asked in stub.asked if asked.path == "/generate"]) == 2
            )  # it may be at work: once each
        finally:
            hold.set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine that nobody has signed, with its key, in one file."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stub")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    path = tmp_path_factory.mktemp("tls") / "stub.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
    return path


def test_a_servers_certificate_is_checked_in_streams_too(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def rule(asked: Asked) -> Answer:
        return Answer(INFO) if asked.path == "/get_model_info" else Answer(events=(result("ab", STOP),))

    with stub_server(rule, context) as stub:
        with pytest.raises(RemoteError, match="CERTIFICATE_VERIFY_FAILED"):
            RuntimeEndpoint(stub.url, retries=0)
        for verify in (str(certificate), False):
            with RuntimeEndpoint(stub.url, verify=verify) as endpoint:
                assert ask.run(backend=endpoint)["x"] == "ab"
        with RuntimeEndpoint(stub.url, verify=False, retries=0) as endpoint:
            endpoint.wire._verify = True  # what a stream uses is what was asked for, and not less
            with pytest.raises(GenerationError, match="CERTIFICATE_VERIFY_FAILED"):
                ask.run(backend=endpoint)["x"]


def test_older_servers_tell_of_themselves_by_the_older_name() -> None:
    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_server_info":
            return Answer({"version": "0.3.6", "api_key": "key-123"})
        return Answer(INFO) if asked.path == "/get_model_info" else Answer("", status=404)

    with stub_server(rule) as stub, RuntimeEndpoint(stub.url) as endpoint:
        info = sgl.get_server_info(endpoint)
        assert info["version"] == "0.3.6"
        assert "api_key" not in info


def test_a_refusal_is_not_sent_again() -> None:
    with serving(Answer({"error": {"message": "top_k is too odd, key-123"}}, status=400)) as stub:
        state = run(stub)
        with pytest.raises(GenerationError, match=r"top_k is too odd, \*\*\*"):
            state["x"]
        assert len(stub.bodies("/generate")) == 1


@pytest.mark.parametrize(
    ("events", "message", "kept"),
    [
        ((result("a"), {"error": {"message": "out of memory"}}), "out of memory", "a"),
        ((result("a"), result("a", {"type": "abort", "message": "bad grammar"})), "bad grammar", "a"),
        ((result("a"),), "ended before", "a"),
    ],
)
def test_an_error_in_the_stream_is_told_and_the_text_kept(events: Any, message: str, kept: str) -> None:
    with serving(Answer(events=events, broken=True)) as stub:
        state = run(stub)
        error = state.error()
        assert message in str(error.__cause__)
        assert isinstance(error.__cause__, RemoteError)
        assert state.text_so_far == "Hi {x} é" + kept


def test_no_part_of_a_stop_is_shown() -> None:
    shown = StreamedText(["STOP"])
    steps = ["a", "a S", "a ST", "a STo", "a STo \ufffd", "a STo é", "a STo éST"]
    assert [shown.take(text) for text in steps] == ["a", " ", "", "STo", " ", "é", ""]
    assert shown.take("a STo é", last=True) == ""
    assert shown.shown == "a STo é"


def tokens(*texts: str, first: float = -1.0) -> list[RemoteToken]:
    ids = {text: index for index, text in enumerate(["Answer", ":", " ", " yes", "yes", " no", "n", "o", " not"])}
    return [RemoteToken(first - index, ids[text], text) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("rows", "choices", "texts", "values"),
    [
        # Nothing joins: the prompt's tokens are in no score.
        ([["Answer", ":", " yes"], ["Answer", ":", " no"]], [" yes", " no"], [[" yes"], [" no"]], [[-3], [-3]]),
        # The prompt's last blank joins both choices: each is scored behind the colon.
        ([["Answer", ":", " yes"], ["Answer", ":", " no"]], ["yes", "no"], [["yes"], ["no"]], [[-3], [-3]]),
        # It joins one of them only: the other's blank is in its score too.
        ([[":", " yes"], [":", " ", "n", "o"]], ["yes", "no"], [["yes"], ["n", "o"]], [[-2], [-5, -4]]),
    ],
)
def test_each_choice_gets_its_own_tokens(rows: Any, choices: Sequence[str], texts: Any, values: Any) -> None:
    known = TokenTexts()
    for row in rows:
        for token in tokens(*row):
            known.learn(token.token_id, token.text)
    scored = attribute([tokens(*row) for row in rows], choices, len(rows[0]) - 1)
    assert scored is not None
    found = [one.logprobs([token.logprob for token in one.tokens], known) for one in scored]
    assert [[known.text(entry.token_id) for entry in row] for row in found] == texts
    assert [[entry.logprob for entry in row] for row in found] == values


def test_rows_that_begin_too_late_are_noticed() -> None:
    assert attribute([tokens(" yes"), tokens(" ", "n", "o")], ["yes", "no"], 1) is None


def test_nothing_secret_in_what_is_saved() -> None:
    with serving(Answer(result("a", STOP))) as stub:
        address = stub.url.replace("http://", "http://me:hunter2@")
        with RuntimeEndpoint(address, api_key="top-secret") as endpoint:
            shown = repr(endpoint) + repr(vars(endpoint)) + json.dumps(endpoint.wire.shown)
            assert "top-secret" not in shown
            assert "hunter2" not in repr(endpoint)
