"""Test that a server's capabilities are probed before a run, and no option is dropped."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.openai.recorder import (
    RUN_TOKENS,
    Recorder,
    answering,
    in_a_run,
    open_engine,
    run,
)
from tests.adapters.engines.openai.scripted import (
    TRANSFORMERS,
    Manner,
    Reply,
    Request,
    Script,
    Scripted,
    failure,
)
from tests.adapters.engines.recording import Tokenless, ask

TINY = Path(__file__).parents[4] / "suites" / "tiny" / "llama2-70b" / "model"
PROMPT = [1, 306, 402, 17]
"""Token ids of the tiny Llama; the first one begins every text."""


def described(
    script: Script, samples: Sequence[Any] = (PROMPT,), /, **options: Any
) -> dict[str, str]:
    with Scripted(script) as server, open_engine(server.url, samples, **options) as engine:
        return dict(engine.describe())


def refusal(script: Script, samples: Sequence[Any] = (PROMPT,), /, **options: Any) -> str:
    with Scripted(script) as server, pytest.raises(RunError) as caught:
        open_engine(server.url, samples, **options).__enter__()
    return str(caught.value)


def bodies(script: Script, samples: Sequence[Any] = (PROMPT,), /, **options: Any) -> dict[str, Any]:
    """Return the body of a run's one request."""
    with Scripted(script) as server:
        run(server.url, samples, sink=Recorder(len(samples)), **options)
    (body,) = [request.body for request in server.streams if in_a_run(request)]
    return body


def test_a_server_that_can_everything_gets_token_ids_and_gives_them() -> None:
    description = described(Manner(), extra={"seed": 1}, max_prompt_tokens=3, ignore_eos=True)

    expected = {"prompts": "tokens", "tokens_counted_by": "usage", "outputs": "token ids"}
    assert {key: description[key] for key in expected} == expected
    kept = {key[11:]: value for key, value in description.items() if key.startswith("generation.")}
    assert kept == {
        "max_new_tokens": "32",
        "min_new_tokens": "1",
        "num_beams": "1",
        "ignore_eos": "true",
        "eos": "none",
        "max_prompt_tokens": "3",
        "extra": '{"seed": 1}',
    }
    assert bodies(Manner(), extra={"seed": 3}) == {
        "prompt": PROMPT,
        "model": "m",
        "stream": True,
        "temperature": 0,
        "seed": 3,
        "max_tokens": RUN_TOKENS,
        "min_tokens": 1,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    drawn = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "seed": 3}
    body = bodies(Manner(), **drawn)
    assert {name: body[name] for name in drawn} == drawn
    with pytest.raises(SuiteError, match="extra has seed, which the engine sets itself"):
        open_engine("http://127.0.0.1:1", [PROMPT], temperature=0.7, extra={"seed": 1})


def test_text_of_the_data_set_is_sent_as_it_is() -> None:
    text = "Say \u00e9 \U0001f600."
    assert bodies(Manner(), [text])["prompt"] == text
    assert 'a lone surrogate, near \'{"prompt":"Say \\ud83d.' in refusal(Manner(), ["Say \ud83d."])
    body = bodies(Manner(), ["Hello"], api="chat")
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert "prompt" not in body
    assert described(Manner(), ["Hello"], api="chat")["generation.api"] == "chat"


def test_a_server_that_takes_text_only_gets_token_ids_as_text() -> None:
    """As `transformers serve` does; the text gives the same ids again, the first one included."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    model = {"model": str(TINY)}

    def manner(tokens: int) -> Manner:
        return dataclasses.replace(TRANSFORMERS, prompt_tokens=tokens)

    description = described(manner(4), **model)
    assert bodies(manner(4), **model) == {
        "prompt": tokenizer.decode(PROMPT[1:]),
        "model": str(TINY),
        "stream": True,
        "temperature": 0,
        "max_tokens": RUN_TOKENS,
        "stream_options": {"include_usage": True},
    }
    facts = {"prompts": "text", "outputs": "text, tokenised again", "generation.eos": "2"}
    facts["min_tokens"] = "not sent: the server does not take it"
    assert {name: description[name] for name in facts} == facts
    assert len(description["tokenizer_sha256"]) == 16

    cut = "the quick brown fox jumps over the lazy dog"
    body = bodies(manner(6), [cut], **model, max_prompt_tokens=6)
    assert tokenizer(body["prompt"])["input_ids"] == tokenizer(cut)["input_ids"][:6]

    # Ids that the tokenizer would never choose are others after the way through text.
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "he"]
    assert tokenizer("he", add_special_tokens=False)["input_ids"] != letters
    prompts = [PROMPT, [1, *letters], [1, *letters, *letters]]
    with (
        Scripted(manner(4)) as server,
        open_engine(server.url, prompts, **model) as engine,
        pytest.raises(RunError, match="2 of 3 prompts change when their token"),
    ):
        engine.load_samples(range(3))
    # Another tokenizer counts one more in the first prompt, for a second begin token, say.
    message = "the server counts 5 tokens in a prompt of 4, sent as text: the server cuts"
    assert message in refusal(manner(5), **model)


def test_an_option_that_the_server_does_not_support_is_an_error() -> None:
    def without(*fields: str, **changes: Any) -> Manner:
        return Manner(refuses=frozenset(fields), **changes)

    no_count = Manner(usage="never", gives_ids=False)
    rows: list[tuple[Manner, dict[str, Any], str]] = [
        (
            without("ignore_eos"),
            {"ignore_eos": True},
            "ignore_eos = true, but the server does not take the field ignore_eos (HTTP 422 "
            "(Unprocessable Entity): Unexpected fields in the request: ['ignore_eos'])",
        ),
        (without("min_tokens"), {"min_new_tokens": 2}, "min_new_tokens = 2, but the server does"),
        (Manner(takes_ids=False), {"prompts": "tokens"}, "HTTP 400 (Bad Request): prompt must be"),
        (no_count, {}, "the server's streams have neither usage nor token ids, so tokens cannot"),
        (without("seed"), {"extra": {"seed": 1}}, "fields in the request: ['seed']"),
    ]
    assert [row for row in rows if row[2] not in refusal(row[0], **row[1])] == []
    one_way = [
        (Manner(usage="never"), "token ids"),
        (Manner(gives_ids=False), "usage"),
        (without("stream_options", gives_ids=False, usage="always"), "usage"),
        (without("return_token_ids"), "usage"),
        (without("min_tokens"), "usage"),
    ]
    counted = [described(manner)["tokens_counted_by"] for manner, _ in one_way]
    assert counted == [way for _, way in one_way]


def test_a_server_that_does_not_answer_says_why() -> None:
    hint = "set api_key_env to the name of the"
    for reply, expected in (
        (
            failure("404 Not Found", "The model `m` does not exist."),
            'does not exist.; set served_model to the name of the model; the request had "m"',
        ),
        (failure("401 Unauthorized", "no key"), f"no key; {hint}"),
        (failure("500 Internal Server Error", "boom"), "HTTP 500 (Internal Server Error): boom"),
        (
            Reply(parts=[b"<h1>hi</h1>"], kind="text/html"),
            "no event stream: the answer has content type text/h",
        ),
        (Reply(parts=[b"data: {\n\n"]), "malformed event: no JSON: '{'"),
        (Reply(parts=[]), "stream ended early: it had no text"),
        (Reply(end="hang"), "time-out: no complete answer within request_timeout = 2 s"),
    ):
        script = answers_to("POST", reply)
        assert expected in refusal(script, ["text"], request_timeout=2)
    for reply, expected in (
        (failure("401 Unauthorized", "no key"), f"HTTP 401 (Unauthorized): no key); {hint}"),
        (failure("403 Forbidden", "not you"), f"not you); {hint}"),
        (Reply(status="307 Temporary Redirect"), "redirects are not followed: set url to where"),
        (
            failure("500 Internal Server Error", "boom"),
            "boom); set served_model to the model's name",
        ),
        (Reply(end="cut"), "no server answers at http://127.0.0.1:"),
    ):
        assert expected in refusal(answers_to("GET", reply))


def answers_to(method: str, reply: Reply) -> Script:
    return lambda request: reply if request.method == method else Manner()(request)


def test_a_server_that_does_not_answer_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        message = f"no server answers at {url} .*start it, or let the"
        secure = r"https:.* start it; if it has no TLS, use http:// in url; if"
        rows = [
            (url, "m", message),
            (url, None, message),
            (url.replace("http", "https"), None, secure),
        ]
        for address, name, expected in rows:
            with pytest.raises(RunError, match=expected):
                open_engine(address, served_model=name).__enter__()


def test_the_name_of_the_model_is_the_suites_the_servers_or_its_path() -> None:
    one_model, two = '{"data":[{"id":"one"}]}', '{"data":[{"id":"one"},{"id":"two"}]}'
    folder = {"model": str(TINY)}
    cases: list[tuple[str, dict[str, str], str]] = [
        (one_model, {}, "one"),
        (two, {"served_model": "two"}, "two"),
        (two, folder, str(TINY)),
        (one_model, folder, "one"),
        *((listed, folder, str(TINY)) for listed in ('{"data":[]}', "oops", '{"data":[5]}')),
    ]
    for listed, options, expected in cases:
        manner = Manner(paths={"/v1/models": listed})
        assert bodies(manner, [PROMPT[:1]], **options)["model"] == expected
    nothing = "lists no model at /v1/models; set served_model"
    assert nothing in refusal(Manner(paths={}))
    for listed, message in (
        ('{"data":[{"id":"b"},{"id":"a"}]}', "lists a, b; set served_model"),
        ('{"data":[{"id":"b"},{"id":"\\u001b[2J"}]}', "lists \ufffd[2J, b; set"),
        ('{"data":[{"id":"model-\\udcff"}]}', nothing),
        ("[" * 100_000, nothing),
    ):
        assert message in refusal(Manner(paths={"/v1/models": listed}))


def test_pages_without_an_end_are_not_read_to_their_end() -> None:
    sent: list[int] = []

    def endless() -> Iterator[bytes]:
        while len(sent) < 64:
            sent.append(1)
            yield b" " * (1 << 20)

    def models(request: Request) -> Reply:
        return Reply(parts=endless(), kind="application/json")

    def others(request: Request) -> Reply:
        facts = request.path in ("/version", "/metrics")
        return models(request) if facts else Manner()(request)

    assert "(too large: /v1/models has more than 16 MiB); set served_model" in refusal(models)
    assert len(sent) < 64
    assert "server.version" not in described(others)
    hanging = Reply(parts=[b'{"data":'], kind="application/json", end="hang")
    message = "(time-out: no answer to GET /v1/models within 2 s); set served_model"
    assert message in refusal(lambda _: hanging, request_timeout=2)


def test_the_version_and_the_set_up_of_the_cache_are_recorded() -> None:
    metrics = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",'
        'engine="0",num_gpu_blocks="20871"} 1.0\n'
        "vllm:num_requests_running 3.0\n"
    )
    paths = {**Manner().paths, "/version": '{"version":"0.33.0"}', "/metrics": metrics}
    description = described(Manner(paths=paths))

    facts = {"version": "0.33.0", "block_size": "16", "cache_dtype": "fp8"}
    facts |= {"enable_prefix_caching": "False", "model": "m", "revision": "main"}
    assert {key[7:]: description[key] for key in description if key.startswith("server.")} == facts
    assert "127.0.0.1" not in json.dumps(description)
    for version in ("[]", "oops", '{"version":{}}'):
        manner = Manner(paths={**Manner().paths, "/version": version})
        assert "server.version" not in described(manner)


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")

    def refuse(request: Request) -> Reply:
        return failure("401 Unauthorized", f"bad {request.headers.get('authorization', 'none')}")

    manner = Manner(paths={"/v1/models": '{"data":[{"id":"m"}]}', "/version": "{}"})
    sink = Recorder(1)
    with Scripted(answering(refuse, manner)) as server, open_engine(server.url) as engine:
        engine.load_samples([0])
        engine.submit([1], [0], sink)
        assert "HTTP 401 (Unauthorized): bad Bearer ***" in sink.message
        assert "s3cret" not in sink.message + json.dumps(dict(engine.describe()))
    assert {asked.headers["authorization"] for asked in server.streams} == {"Bearer sk-s3cret"}


def test_prompts_are_echoed_with_their_log_probabilities() -> None:
    prompts = [PROMPT, [1, 5]]
    sink = Tokenless(len(prompts))
    with (
        Scripted(Manner()) as server,
        open_engine(server.url, prompts, prompt_logprobs=True) as engine,
    ):
        ask(engine, sink, len(prompts))
        described = engine.describe()

    for index, prompt in enumerate(prompts):
        tokens, logprobs = zip(*struct.iter_unpack("<if", sink.outputs[100 + index]), strict=True)
        assert list(tokens) == prompt
        assert math.isnan(logprobs[0])
        assert logprobs[1:] == pytest.approx([-token / 1000 for token in prompt[1:]])
    assert [key for key in described if key.startswith("generation.")] == [
        "generation.prompt_logprobs"
    ]
    body = server.streams[-1].body
    assert (body["echo"], body["logprobs"], body["max_tokens"]) == (True, 1, 1)
    assert "ignore_eos" not in body


def test_a_server_without_log_probabilities_of_prompts_is_refused() -> None:
    silent = refusal(Manner(echoes=False), prompt_logprobs=True)
    strict = refusal(Manner(refuses=frozenset({"echo"})), prompt_logprobs=True)

    assert "does not give them (no log-probabilities of the prompt: the server gave 0" in silent
    assert "gave 0 log-probabilities for the 3 prompt tokens after the first); use" in silent
    assert "use a server that answers echo = true with logprobs in /v1/completions" in silent
    assert "Unexpected fields in the request: ['echo']" in strict
