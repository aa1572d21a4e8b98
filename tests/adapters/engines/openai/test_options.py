"""Wrong options are refused before anything is started or sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pytest_mlperf.adapters.engines.openai._address import (
    Address,
    Secrets,
    request_headers,
)
from pytest_mlperf.core.errors import EnvironmentFault, SuiteError, UnavailableError
from tests.adapters.engines.openai.recorder import open_engine
from tests.refusals import unrefused

SERVE = ["vllm", "serve", "{model}", "--port", "{port}"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"api": "responses"}, "api = 'responses' is not one of completions, chat"),
    ({"prompts": "ids"}, "prompts = 'ids' is not one of auto, tokens, text"),
    ({"weights": "random"}, "weights = 'random' is not one of checkpoint, dummy"),
    ({"api": "chat", "prompts": "tokens"}, 'a chat takes text only; set api = "completions"'),
    ({"prompt_logprobs": True, "api": "chat"}, "prompt_logprobs = true sends token ids to /v1/"),
    ({"prompt_logprobs": True, "prompts": "text"}, "prompt_logprobs = true sends token ids"),
    ({"prompt_logprobs": True, "temperature": 1.0}, "generates no tokens, so temperature would"),
    ({"max_new_tokens": 0}, "max_new_tokens = 0 is not at least 1"),
    ({"min_new_tokens": -1}, "min_new_tokens = -1 is not from 0 to max_new_tokens = 32"),
    ({"min_new_tokens": 33}, "min_new_tokens = 33 is not from 0 to max_new_tokens = 32"),
    ({"max_prompt_tokens": 0}, "max_prompt_tokens = 0 is not at least 1"),
    ({"concurrency": 0}, "concurrency = 0 is not a number of requests, at least 1"),
    ({"clients": 0}, "clients = 0 is not a number of processes, at least 1"),
    ({"clients": 2, "concurrency": 5}, "concurrency = 5 must be a multiple of clients = 2"),
    ({"clients": 2, "url": None, "serve": SERVE}, "clients = 2 needs the url of a running"),
    ({"request_timeout": 0}, "request_timeout = 0 is not a number of seconds above 0"),
    ({"extra": {"top_k": 1, "max_tokens": 3}}, "extra has max_tokens, which the engine sets"),
    ({"url": None}, "set either url (of a running server) or serve"),
    ({"serve": SERVE}, "(a command that starts one), not both"),
    ({"url": None, "serve": SERVE}, "serve has {model}, but the suite names no model"),
    ({"url": None, "serve": ["vllm", "serve"]}, "serve does not give the server its port"),
    ({"env": {"A": "1"}}, "env needs serve, as it applies to a server"),
    ({"url": "ftp://x"}, "url = 'ftp://x' is not an address"),
    ({"api_key_env": "sk-s3cret"}, "need names of environment variables, not their values"),
    ({"headers_env": {"api-key": "sk-s3cret"}}, "need names of environment variables, not their"),
    ({"headers_env": {"a b": "K"}}, 'headers_env has "a b", which is no valid name of a header'),
    ({"headers_env": {"Host": "K"}}, 'headers_env has "Host", which is no valid name'),
    ({"headers_env": {"X-A": "K", "x-a": "L"}}, 'the header "X-A" is set twice'),
    ({"headers_env": {"X-A": "K"}, "session_header": "x-a"}, 'the header "X-A" is set twice'),
    (
        {"headers_env": {"Authorization": "K"}, "api_key_env": "L"},
        'headers_env has "Authorization", which is no valid name of a header, or a header that',
    ),
]


def test_an_option_out_of_range_is_named_with_its_value(tmp_path: Path) -> None:
    def build(options: dict[str, Any]) -> None:
        open_engine("http://127.0.0.1:1", **options)

    assert unrefused(build, SuiteError, REFUSED) == []
    # A path with a mistake is not sent to the server as a name.
    with pytest.raises(UnavailableError, match="this model folder does not exist"):
        open_engine("http://127.0.0.1:1", model=str(tmp_path / "no"))


def test_an_address_is_that_of_a_server_its_api_or_its_requests() -> None:
    azure = "https://x.openai.azure.com/openai/deployments/gpt"
    version = "?api-version=2024-10-21"
    rows: list[tuple[str, str, tuple[str, str, str]]] = [
        ("http://127.0.0.1:8000", "chat", ("http://127.0.0.1:8000", "/v1", "")),
        ("http://127.0.0.1:8000/", "chat", ("http://127.0.0.1:8000", "/v1", "")),
        ("http://127.0.0.1:8000/v1/", "chat", ("http://127.0.0.1:8000", "/v1", "")),
        ("http://127.0.0.1:8000//v1", "chat", ("http://127.0.0.1:8000", "/v1", "")),
        ("https://llm.example/team/v1", "chat", ("https://llm.example/team", "/v1", "")),
        ("http://ovms/v3", "chat", ("http://ovms", "/v3", "")),
        ("http://nim/v1/chat/completions", "chat", ("http://nim", "/v1", "")),
        ("http://nim/v1/completions", "completions", ("http://nim", "/v1", "")),
        ("https://g/openai/chat/completions", "chat", ("https://g/openai", "", "")),
        (azure + version, "chat", (azure, "", version)),
        (f"{azure}/chat/completions{version}", "chat", (azure, "", version)),
        (f"{azure}/completions{version}", "completions", (azure, "", version)),
        ("http://h/?a=b c", "chat", ("http://h", "/v1", "?a=b%20c")),
        ("http://[::1]:80", "chat", ("http://[::1]:80", "/v1", "")),
        ("unix:///run/server.sock", "chat", ("unix:/run/server.sock", "/v1", "")),
    ]
    for url, api, expected in rows:
        address = Address.of(url, api)
        assert (address.root, address.api, address.query) == expected, url
    refused = {
        **dict.fromkeys(("", "127.0.0.1:8000", "http://", "http://a:port"), "is not an address"),
        **dict.fromkeys(("http://a..b", f"http://{'a' * 70}"), "is not an address such"),
        **dict.fromkeys(
            ("http://a:0", "http://a b", "http://a\\b", "http://a "), "is not an address"
        ),
        **dict.fromkeys(("http://a#b", "unix://host/a", "unix:a.sock"), "is not an address such"),
        "http://me:s3cret@host:1": "url has a user or password, which would be recorded",
        **{
            f"http://a/?{name}=s3cret": f"url has {name} in its query"
            for name in ("code", "apikey", "accessToken", "auth", "pwd", "sig", "X-Goog-Credential")
        },
        "http://a/?api-version=1&subscription-key=s3cret": "has subscription-key in its query",
        "http://a/v1/completions": 'url ends in /completions, but api = "chat"',
    }
    for url, message in refused.items():
        with pytest.raises(SuiteError, match=message) as caught:
            Address.of(url, "chat")
        assert "s3cret" not in str(caught.value)


def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OPENAI_API_KEY": "sk-one", "TEAM": " red ", "AZURE": "two"}.items():
        monkeypatch.setenv(name, value)
    bearer = {"Authorization": "Bearer sk-one"}
    rows = [
        ("OPENAI_API_KEY", {"X-Team": "TEAM"}, {**bearer, "X-Team": "red"}),
        # A key in a header of its own replaces the usual one, which another service's may be.
        ("OPENAI_API_KEY", {"api-key": "AZURE"}, {"api-key": "two"}),
        ("OPENAI_API_KEY", {"authorization": "AZURE"}, {"authorization": "two"}),
        ("AZURE", {"x-api-key": "TEAM"}, {"Authorization": "Bearer two", "x-api-key": "red"}),
        (None, {}, {}),
        ("OPENAI_API_KEY", {}, bearer),
    ]
    assert [row for row in rows if request_headers(row[0], row[1]) != row[2]] == []
    monkeypatch.delenv("OPENAI_API_KEY")
    assert request_headers("OPENAI_API_KEY", {}) == {}
    monkeypatch.setenv("BROKEN", "xq7\nc")
    for key, variables, fault in (
        (None, {"api-key": "NO"}, 'headers_env has api-key = "NO", but this environment'),
        ("NO", {}, 'api_key_env = "NO", but this environment variable is not set'),
        ("BROKEN", {}, "but the value of this environment variable has characters"),
    ):
        with pytest.raises(EnvironmentFault, match=fault) as caught:
            request_headers(key, variables)
        assert "xq7" not in str(caught.value)


SECRET = 'sk/s3cret\\+"word'


@pytest.mark.parametrize(
    "text",
    [
        f"key {SECRET} is wrong",
        f"Bearer {SECRET}",
        f"no JSON: {SECRET.encode()!r}",
        json.dumps({"headers": SECRET}),
        json.dumps({"headers": SECRET}).replace("/", r"\/"),
        quote(SECRET, safe=""),
        *(f"cut short: '{SECRET[:length]}'…" for length in range(4, len(SECRET))),
    ],
)
def test_a_secret_is_masked_in_every_form(text: str) -> None:
    masked = Secrets([f"Bearer {SECRET}"]).mask(text)
    assert "s3c" not in masked
    assert "***" in masked


def test_a_short_secret_is_masked_as_a_word_alone() -> None:
    assert Secrets(["ab"]).mask("ab is about ab") == "*** is about ***"
    assert Secrets().mask("nothing to hide") == "nothing to hide"
