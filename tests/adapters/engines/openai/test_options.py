"""Wrong options are refused before anything is started or sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.openai import api_key, base_url
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
    ({"prompt_logprobs": True, "temperature": 1.0}, "generates nothing: leave temperature out"),
    ({"max_new_tokens": 0}, "max_new_tokens = 0 is not at least 1"),
    ({"min_new_tokens": -1}, "min_new_tokens = -1 is not from 0 to max_new_tokens = 32"),
    ({"min_new_tokens": 33}, "min_new_tokens = 33 is not from 0 to max_new_tokens = 32"),
    ({"max_prompt_tokens": 0}, "max_prompt_tokens = 0 is not at least 1"),
    ({"concurrency": 0}, "concurrency = 0 is not a number of requests, at least 1"),
    ({"clients": 0}, "clients = 0 is not a number of processes, at least 1"),
    ({"clients": 2, "concurrency": 5}, "concurrency = 5 cannot be shared evenly by clients"),
    ({"clients": 2, "url": None, "serve": SERVE}, "several clients need url, of a server"),
    ({"request_timeout": 0}, "request_timeout = 0 is not a number of seconds above 0"),
    ({"extra": {"top_k": 1, "max_tokens": 3}}, "extra has max_tokens, which the engine sets"),
    ({"url": None}, "set either url, of a server that runs, or serve"),
    ({"serve": SERVE}, "the command that starts one, not both"),
    ({"url": None, "serve": SERVE}, "serve has {model}, but the suite names none"),
    ({"url": None, "serve": ["vllm", "serve"]}, "serve does not give the server its port"),
    ({"env": {"A": "1"}}, "env is for a server that serve starts"),
    ({"url": "ftp://x"}, "url = 'ftp://x' is not an address"),
]


def test_an_option_out_of_range_is_named_with_its_value(tmp_path: Path) -> None:
    def build(options: dict[str, Any]) -> None:
        open_engine("http://127.0.0.1:1", **options)

    assert unrefused(build, SuiteError, REFUSED) == []
    # A path with a mistake is not sent to the server as a name.
    with pytest.raises(UnavailableError, match="this model folder does not exist"):
        open_engine("http://127.0.0.1:1", model=str(tmp_path / "no"))


def test_an_address_may_end_in_v1_and_has_no_query_or_password() -> None:
    addresses = {
        "http://127.0.0.1:8000": "http://127.0.0.1:8000",
        "http://127.0.0.1:8000/": "http://127.0.0.1:8000",
        "http://127.0.0.1:8000/v1": "http://127.0.0.1:8000",
        "https://llm.example/team/v1/": "https://llm.example/team",
        "http://[::1]:80": "http://[::1]:80",
    }
    assert {url: base_url(url) for url in addresses} == addresses
    for url in ("", "127.0.0.1:8000", "http://", "http://a:port", "http://a/?key=1", "http://a#b"):
        with pytest.raises(SuiteError, match="is not an address as"):
            base_url(url)
    with pytest.raises(SuiteError, match="has a user or password") as caught:
        base_url("http://me:s3cret@host:1")
    assert "s3cret" not in str(caught.value)


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert api_key("OPENAI_API_KEY") is None
    assert api_key(None) is None
    with pytest.raises(EnvironmentFault, match='api_key_env = "MY_KEY", but this environment'):
        api_key("MY_KEY")

    monkeypatch.setenv("MY_KEY", " abc\n")
    assert api_key("MY_KEY") == "abc"
    monkeypatch.setenv("MY_KEY", "ab\nc")
    with pytest.raises(EnvironmentFault, match="characters that no key has") as caught:
        api_key("MY_KEY")
    assert "ab" not in str(caught.value).split("MY_KEY")[1].split("holds")[0]
