"""Each server of the table in docs/openai.md is measured with the table's options."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.openai.recorder import (
    Recorder,
    answering,
    in_a_run,
    open_engine,
    run,
    write_suite,
)
from tests.adapters.engines.openai.scripted import (
    DONE,
    Manner,
    Reply,
    Request,
    Script,
    Scripted,
    event,
    failure,
    piece,
)
from tests.adapters.engines.openai.test_count import tokenizer

DOCS = Path(__file__).parents[4] / "docs"

KEY = "s3cret-of-a-gateway"

FIELDS = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "temperature", "max_tokens"}
)
"""Fields of OpenAI's own API that the engine may send."""


def models(*names: str) -> dict[str, str]:
    """Return the page of these models."""
    return {"/v1/models": json.dumps({"data": [{"id": name} for name in names]})}


@dataclass(frozen=True, kw_only=True)
class Azure(Manner):
    """A deployment of Azure: filter results first, and a dated name of the model."""

    def stream(self, request: Request) -> Reply:
        reply = super().stream(request)
        parts = [part.replace(b'"tiny@main"', b'"gpt-2024-11-20"') for part in reply.parts]
        filtered = event({"id": "", "model": "", "choices": [], "prompt_filter_results": []})
        return replace(reply, parts=[filtered, *parts])

    def __call__(self, request: Request) -> Reply:
        if "max_tokens" in request.body:
            return failure(
                "400 Bad Request",
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                "'max_completion_tokens' instead.",
                code="unsupported_parameter",
            )
        return super().__call__(request)


@dataclass(frozen=True, kw_only=True)
class Door:
    """A kind of server, the options that it needs, and what the engine finds out.

    Attributes:
        url: End of its url.
        facts: Facts of the engine's description.
    """

    manner: Manner
    url: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


CHAT = {"api": "chat"}
BY_USAGE = {"tokens_counted_by": "usage", "outputs": "text, tokenised again"}
PROMETHEUS = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"

DOORS = {
    "vLLM": Door(
        manner=Manner(
            paths={**models("m"), "/version": '{"version":"0.12.0"}', "/metrics": PROMETHEUS}
        ),
        facts={"server.version": "0.12.0", "outputs": "token ids", "prompts": "text"},
    ),
    "SGLang": Door(manner=Manner(gives_ids=False, paths=models("m")), facts=BY_USAGE),
    "trtllm-serve": Door(
        manner=Manner(
            only=FIELDS | {"ignore_eos", "min_tokens"},
            paths={**models("m"), "/version": '{"version":"1.2.0"}', "/metrics": "[]"},
        ),
        facts={**BY_USAGE, "server.version": "1.2.0"},
    ),
    "TGI": Door(
        manner=Manner(gives_ids=False, takes_ids=False, stops="stop_sequence", paths=models("tgi")),
        options={**CHAT, "extra": {"stop": ["x"]}},
        facts=BY_USAGE,
    ),
    "llama-server": Door(manner=Manner(gives_ids=False, paths=models("m.gguf")), facts=BY_USAGE),
    "Ollama": Door(
        manner=Manner(gives_ids=False, takes_ids=False, paths=models("m", "other")),
        options={"served_model": "m"},
        facts=BY_USAGE,
    ),
    "NIM": Door(
        manner=Manner(
            gives_ids=False,
            only=FIELDS,
            paths={
                **models("meta/llama"),
                "/v1/version": '{"release":"2.0.6","api":"1"}',
                "/v1/metrics": PROMETHEUS,
            },
        ),
        options=CHAT,
        facts={**BY_USAGE, "server.version": "2.0.6"},
    ),
    "Azure": Door(
        manner=Azure(
            gives_ids=False,
            only=FIELDS - {"max_tokens"} | {"max_completion_tokens"},
            root=("/openai/deployments/gpt", "?api-version=2024-10-21"),
            header=("api-key", KEY),
            paths={},
        ),
        url="/openai/deployments/gpt?api-version=2024-10-21",
        options={
            **CHAT,
            "headers_env": {"api-key": "AZURE_OPENAI_API_KEY"},
            "served_model": "gpt",
            "served_model_answers": ["gpt-2024-11-20"],
        },
        facts={**BY_USAGE, "max_tokens": "sent as max_completion_tokens"},
    ),
    "LiteLLM": Door(
        manner=Manner(
            gives_ids=False,
            takes_ids=False,
            refuses=frozenset({"return_token_ids", "min_tokens"}),
            header=("x-litellm-api-key", KEY),
            paths=models("m", "other"),
        ),
        options={
            **CHAT,
            "headers_env": {"x-litellm-api-key": "LITELLM_KEY"},
            "served_model": "m",
        },
        facts=BY_USAGE,
    ),
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("AZURE_OPENAI_API_KEY", "LITELLM_KEY", "GATEWAY_KEY"):
        monkeypatch.setenv(name, KEY)


@pytest.mark.parametrize("name", DOORS)
def test_each_server_is_measured_with_its_options(name: str) -> None:
    door, sink = DOORS[name], Recorder(2)
    with Scripted(door.manner) as server:
        url = server.url + door.url
        run(url, ["Say it.", "Again."], sink=sink, **door.options)
        with open_engine(url, ["Say it."], **door.options) as engine:
            described = dict(engine.describe())

    assert not sink.errors
    assert sink.n_tokens == {100: 5, 101: 5}
    assert {key: described[key] for key in door.facts} == door.facts
    assert KEY not in json.dumps(described)


def test_the_table_of_the_docs_has_these_servers_and_options() -> None:
    text = (DOCS / "openai.md").read_text("utf-8")
    rows = re.findall(r"^\| (\S[^|]*?) \| ([^|]*) \|", text.partition("## Servers")[2], re.M)
    table = {name: options for name, options in rows if name in DOORS}

    assert list(table) == list(DOORS)
    for name, door in DOORS.items():
        assert [option for option in door.options if option not in table[name]] == [], name


@pytest.mark.parametrize("place", ["::1", "socket"])
def test_ipv6_and_unix_sockets_reach_the_server(place: str, tmp_path: Path) -> None:
    at = str(tmp_path / "server.sock") if place == "socket" else place
    sink, manner = Recorder(1), Manner(paths={**models("m"), "/metrics": PROMETHEUS})
    with Scripted(manner, at=at) as server:
        with open_engine(server.url, ["text"]) as engine:
            engine.reach()
            pages = engine.metrics_pages()
            engine.load_samples([0])
            engine.submit([100], [0], sink)
            sink.wait_for_end()
        host = "localhost" if place == "socket" else server.url.removeprefix("http://")
        assert {request.headers["host"] for request in server.requests} == {host}
        # Only this process's connections reach a socket's pages.
        assert list(pages) == ([] if place == "socket" else [f"{server.url}/metrics"])
    assert sink.n_tokens == {100: 5}
    assert not sink.errors
    absent = open_engine("unix:///nowhere/a.sock" if place == "socket" else server.url, ["text"])
    with pytest.raises(RunError, match="no server listens at "):
        absent.reach()
    with pytest.raises(RunError, match=r"no server answers at .*cannot connect to "):
        absent.__enter__()


@pytest.mark.process
def test_tls_is_http_1_1_with_an_authority_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (program := shutil.which("openssl")) is None:
        pytest.skip("needs openssl")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    files = ("-keyout", key, "-out", certificate)
    command = (program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *subject)
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Scripted(Manner(), tls=context) as server:
        with pytest.raises(RunError, match="SSL_CERT_FILE"):
            open_engine(server.url, ["text"]).__enter__()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        run(server.url, ["text"], sink=(sink := Recorder(1)))
    assert sink.n_tokens == {100: 5}
    assert server.protocols == {"http/1.1"}


def test_a_header_is_masked_in_every_error() -> None:
    """Servers quote what they were sent, whole, cut short, and in events."""
    long = "x" * 96
    replies = [
        failure("401 Unauthorized", f"bad {KEY}"),
        failure("400 Bad Request", json.dumps({"headers": {"api-key": KEY}})),
        Reply(parts=[event({"error": f"key {KEY}"})]),
        Reply(parts=[f"data: {long}{KEY}{long}\n\n".encode()]),
        Reply(parts=[f"data: {long}{long[:12]}{KEY}\n\n".encode()]),
        Reply(parts=[f"no {KEY}".encode()], kind="text/plain"),
        Reply(parts=[piece("a", finish=KEY), DONE]),
        Reply(parts=[piece("a", finish=f"{long[:33]}{KEY}"), DONE]),
        Reply(parts=[event({"model": KEY, "choices": [{"text": "a", "finish_reason": "stop"}]})]),
    ]
    options = {"headers_env": {"api-key": "GATEWAY_KEY"}}
    for reply in replies:
        sink = Recorder(1)
        with Scripted(answering(lambda _, reply=reply: reply)) as server:  # type: ignore[misc]
            run(server.url, sink=sink, **options)
        messages = [sink.message, refusal(lambda _, reply=reply: reply, **options)]  # type: ignore[misc]
        assert [message for message in messages if KEY[:4] in message] == []


def test_a_listed_name_is_masked_and_quoted_in_one_line() -> None:
    """A gateway may list what it was sent as the name of its only model."""
    manner = Manner(paths=models(f"{KEY}\nx"))
    counted = event({"model": "m", "choices": [], "usage": {"completion_tokens": 1}})
    other = Reply(parts=[piece("a", finish="stop"), counted])
    with (
        Scripted(lambda request: manner(request) if request.method == "GET" else other) as server,
        pytest.raises(RunError, match=r'"\*\*\* x" was requested, but "m" answered'),
    ):
        open_engine(server.url, ["text"], headers_env={"api-key": "GATEWAY_KEY"}).__enter__()


def refusal(script: Script, **options: Any) -> str:
    """Return the error before a run of a server that lists its model."""
    manner = Manner(paths=models("m"))
    with (
        Scripted(
            lambda request: (manner if request.method == "GET" else script)(request)
        ) as server,
        pytest.raises(RunError) as caught,
    ):
        open_engine(server.url, ["text"], **options).__enter__()
    return str(caught.value)


ABOUT_MODEL = "set served_model to the name of the model; the request had"
ABOUT_LENGTH = "shorten the prompts or max_new_tokens"
ABOUT_KEY, ABOUT_PATH = "set api_key_env to the name", "is not a path of this server"
ADVICE = (ABOUT_MODEL, ABOUT_LENGTH, ABOUT_KEY, ABOUT_PATH, "check the value", "redirects are not")


@pytest.mark.parametrize(
    ("status", "text", "advice"),
    [
        ("404 Not Found", "The model `m` does not exist.", ABOUT_MODEL),
        ("404 Not Found", 'model "m" not found, try pulling it first', ABOUT_MODEL),
        ("400 Bad Request", "Invalid model name passed in model=m", ABOUT_MODEL),
        ("400 Bad Request", "m is not a valid model identifier", ABOUT_MODEL),
        ("400 Bad Request", "This model's maximum context length is 8 tokens", ABOUT_LENGTH),
        ("422 Unprocessable Content", "inputs must have less than 8: too long", ABOUT_LENGTH),
        ("404 Not Found", "Not Found", ABOUT_PATH),
        ("405 Method Not Allowed", "Method Not Allowed", ABOUT_PATH),
        ("401 Unauthorized", "no key", ABOUT_KEY),
        ("403 Forbidden", "no key for this model", ABOUT_KEY),
        ("400 Bad Request", "'temperature' is not supported with this model", ""),
        ("400 Bad Request", "'max_tokens' is not supported with this model", ""),
        ("400 Bad Request", "top_k must be an integer", ""),
        ("500 Internal Server Error", "the model m does not exist in this shard", ""),
        ("429 Too Many Requests", "the prompt queue is too long", ""),
        ("307 Temporary Redirect", "", "redirects are not"),
    ],
)
def test_advice_fits_the_cause(status: str, text: str, advice: str) -> None:
    message = refusal(lambda _: failure(status, text))
    assert [words for words in ADVICE if words in message] == [advice] * bool(advice)
    sent = refusal(lambda _: failure(status, text), headers_env={"api-key": "GATEWAY_KEY"})
    assert ("it was sent api-key: check the value" in sent) == (advice == ABOUT_KEY)


@pytest.mark.parametrize(
    "field", ["stream_options", "return_token_ids", "min_tokens", "ignore_eos"]
)
def test_a_server_that_fails_is_not_one_without_a_field(field: str) -> None:
    """A rate limit between two questions, or a gateway without a server behind it."""
    for status, advice in (("429 Too Many Requests", ""), ("401 Unauthorized", ABOUT_KEY)):
        message = refusal(
            lambda request, status=status: (  # type: ignore[misc]
                failure(status, "busy") if field in request.body else Manner()(request)
            ),
            ignore_eos=True,
            min_new_tokens=2,
        )
        assert f"failed a request before the run: HTTP {status[:3]}" in message
        assert advice in message
        assert "or use a server that takes it" not in message


@dataclass(frozen=True, kw_only=True)
class Terse(Manner):
    """A server that takes the second field for the length alone, and does not name the first."""

    status: str

    def __call__(self, request: Request) -> Reply:
        if "max_tokens" in request.body:
            return failure(self.status, "no such field")
        return super().__call__(request)


def test_the_other_field_for_the_length_is_used_in_chats_only_if_the_first_is_refused() -> None:
    for refused, api, fields in (
        ("max_completion_tokens", "chat", {"max_tokens"}),
        ("max_tokens", "chat", {"max_completion_tokens"}),
    ):
        manner = Manner(refuses=frozenset({refused}))
        with Scripted(manner) as server:
            run(server.url, ["a"] * 3, sink=Recorder(3), api=api)
        streams = [request.body for request in server.streams[1:]]
        sent = [set(body) & {"max_tokens", "max_completion_tokens"} for body in streams]
        assert all(names == fields for names in sent)

    for status in ("400 Bad Request", "422 Unprocessable Entity"):
        with Scripted(Terse(status=status)) as server:
            run(server.url, ["a"] * 3, sink=Recorder(3), api="chat")
    message = refusal(Manner(refuses=frozenset({"max_tokens"})))
    assert "Unexpected fields in the request: ['max_tokens']" in message
    both = Manner(refuses=frozenset({"max_tokens", "max_completion_tokens"}))
    assert "['max_tokens']" in refusal(both, api="chat")


def test_a_stream_of_comments_alone_ends_at_the_time_out() -> None:
    """Comments keep a connection alive, and say nothing of the answer."""

    def comments() -> Iterator[bytes]:
        yield from itertools.repeat(b": ping\n\n")

    def begun() -> Iterator[bytes]:
        yield piece("a", ids=[1])
        yield from itertools.repeat(b":\r\n\r\n")

    for parts in (comments, begun):
        sink = Recorder(1)
        reply = answering(lambda _, parts=parts: Reply(parts=parts(), pace_s=0.05))  # type: ignore[misc]
        with Scripted(reply) as server:
            run(server.url, sink=sink, request_timeout=1)
        expected = "sample 0: time-out: a stream sent only comments for 1 s (request_timeout)"
        assert expected in sink.message


def test_comments_do_not_end_a_slow_stream() -> None:
    """Comments before, between and after events that come in time."""

    def parts() -> Iterator[bytes]:
        for number in range(4):
            for _ in range(6):
                yield b": ping\n\n"
            yield piece("a", ids=[number], finish="stop" if number == 3 else None)
        yield DONE

    sink = Recorder(1)
    with Scripted(answering(lambda _: Reply(parts=parts(), pace_s=0.05))) as server:
        run(server.url, sink=sink, request_timeout=1)
    assert not sink.errors
    assert sink.n_tokens == {100: 4}


def test_a_refused_or_broken_request_is_sent_once() -> None:
    replies = (
        failure("429 Too Many Requests", "slow down"),
        failure("503 Service Unavailable", "warm"),
        Reply(end="cut"),
        Reply(parts=[piece("a", ids=[1])], end="cut"),
    )
    for reply in replies:
        sink = Recorder(1)
        with Scripted(answering(lambda _, reply=reply: reply)) as server:  # type: ignore[misc]
            run(server.url, sink=sink)
        assert sink.message.startswith("1 of 1 request failed")
        assert len([request for request in server.streams if in_a_run(request)]) == 1


def test_a_server_without_counts_is_counted_by_the_named_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tokenizer().save_pretrained(tmp_path)
    silent = Manner(usage="never", gives_ids=False)
    options = {"count_tokens": "reference", "tokenizer": str(tmp_path), "api": "chat"}
    for more in ({}, {"ignore_eos": True, "max_new_tokens": 4}):
        sink = Recorder(2)
        with (
            Scripted(silent) as server,
            open_engine(server.url, ["one", "two"], **options, **more) as engine,
        ):
            assert engine.describe()["tokens_counted_by"] == "reference tokenizer"
            assert engine.counted_again() is None  # LoadGen takes tokens as they come
            engine.load_samples([0, 1])
            engine.submit([100, 101], [0, 1], sink)
            sink.wait_for_end()
        assert not sink.errors
        assert sink.n_tokens == dict.fromkeys((100, 101), more.get("max_new_tokens", 5))
    message = refusal(silent)
    assert "neither usage nor token ids, so tokens cannot be counted; set count_tok" in message
    # The tokenizer need not count as the server does: the reason of the end says if it obeyed.
    liar = replace(silent, refuses=frozenset())
    sink = Recorder(1)
    with (
        Scripted(
            lambda request: liar(replace(request, body={**request.body, "ignore_eos": False}))
        ) as s,
        open_engine(s.url, ["one"], **options, ignore_eos=True) as engine,
    ):
        engine.load_samples([0])
        engine.submit([100], [0], sink)
        assert "ignore_eos not obeyed: finish_reason 'stop', not 'length'" in sink.message


SERVER = """import http.server, sys

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("headers", dict(self.headers), file=sys.stderr, flush=True)
        self.send_response(200 if self.path == "/health" else 500)
        self.end_headers()
        self.wfile.write(self.headers.get("api-key", "none").encode())

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


@pytest.mark.process
def test_no_file_output_or_command_line_has_the_value_of_a_header(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server writes it to its log and into its answers, and the run ends as ERROR."""
    monkeypatch.setenv("GATEWAY_KEY", KEY)
    monkeypatch.chdir(pytester.path)
    Path("server.py").write_text(SERVER)
    write_suite(
        f"""
[[engines]]
use = "openai"
accelerators = ["cpu"]

[engines.options]
serve = ["{sys.executable}", "{pytester.path}/server.py", "{{port}}"]
headers_env = {{ api-key = "GATEWAY_KEY" }}
served_model = "m"
""",
        'points = [1]\nmin_duration = "1s"\n',
        ["Say it."],
    )
    reports = ("--mlperf-report=json=r.json", "--junitxml=j.xml", "--mlperf-runs-dir=runs")
    result = pytester.runpytest_inprocess("s.mlperf.toml", "-v", "-omlperf_control=off", *reports)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*HTTP 501*"])
    assert KEY not in result.stdout.str() + result.stderr.str()
    files = [file for file in Path().rglob("*") if file.is_file()]
    (log,) = Path().rglob("server.log")
    assert "'api-key': '***'" in log.read_text()
    assert [file for file in files if KEY.encode() in file.read_bytes()] == []
