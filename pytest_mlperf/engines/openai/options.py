"""What a suite may say to the openai engine; all else is refused before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pytest_mlperf.core.errors import EnvironmentFault, SuiteError

APIS = ("completions", "chat")
PROMPTS = ("auto", "tokens", "text")
WEIGHTS = ("checkpoint", "dummy")

DEFAULT_KEY = "OPENAI_API_KEY"
"""Read where it is set; any other name that a suite gives must be set."""

OURS = frozenset(
    {
        *("model", "prompt", "messages", "stream", "stream_options", "temperature", "n", "best_of"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "return_token_ids"),
        *("echo", "do_sample", "use_beam_search"),
    }
)
"""Fields of a request that the engine sets, or that would change what is counted."""


def check_words(api: str, prompts: str, weights: str) -> None:
    """Refuse words that mean nothing here."""
    for name, value, words in (
        ("api", api, APIS),
        ("prompts", prompts, PROMPTS),
        ("weights", weights, WEIGHTS),
    ):
        if value not in words:
            raise SuiteError(f"engine openai: {name} = {value!r} is not one of {', '.join(words)}")
    if api == "chat" and prompts == "tokens":
        raise SuiteError(
            'engine openai: prompts = "tokens" with api = "chat": a chat takes text only; set '
            'api = "completions"'
        )


def check_numbers(concurrency: int | None, request_timeout: float) -> None:
    """Refuse numbers out of range."""
    rules = (
        (
            "concurrency",
            concurrency,
            concurrency is None or concurrency >= 1,
            "a number of requests, at least 1",
        ),
        ("request_timeout", request_timeout, request_timeout > 0, "a number of seconds above 0"),
    )
    for name, value, valid, expected in rules:
        if not valid:
            raise SuiteError(f"engine openai: {name} = {value!r} is not {expected}")


def check_source(
    url: str | None, serve: Sequence[str] | None, environment: Mapping[str, str]
) -> None:
    """Refuse anything but one server: one that runs, or one to start."""
    if (url is None) == (serve is None):
        raise SuiteError(
            "engine openai: set either url, of a server that runs, or serve, the command that "
            "starts one" + ("" if url is None else ", not both")
        )
    if serve is None and environment:
        raise SuiteError(
            "engine openai: env is for a server that serve starts; this one runs already"
        )
    for name, value in environment.items():
        if not isinstance(value, str):
            raise SuiteError(f"engine openai: env.{name} = {value!r} is not text; put it in quotes")


def check_extra(extra: Mapping[str, Any]) -> None:
    """Refuse fields of the request that are the engine's."""
    if taken := sorted(OURS & set(extra)):
        raise SuiteError(
            f"engine openai: extra has {', '.join(taken)}, which the engine sets itself; use its "
            "own options, as max_new_tokens"
        )


def base_url(url: str) -> str:
    """Return a server's address without a path: "/v1", as clients write it, may follow it.

    Raises:
        SuiteError: It is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # is only read, and refused, here
    except ValueError:
        parts = urlsplit("")
    if parts.username or parts.password:
        raise SuiteError(
            "engine openai: url has a user or password, which would be recorded; put the key into "
            "an environment variable and its name into api_key_env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise SuiteError(
            f'engine openai: url = {url!r} is not an address as "http://127.0.0.1:8000"'
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def api_key(variable: str | None) -> str | None:
    """Return the key of an environment variable; None where there is none to send.

    Raises:
        EnvironmentFault: The suite names a variable that is not set, or holds no key.
    """
    value = os.environ.get(variable, "").strip() if variable else ""
    if not value:
        if variable and variable != DEFAULT_KEY:
            raise EnvironmentFault(
                f'engine openai: api_key_env = "{variable}", but this environment variable is not '
                "set; set it to the server's key"
            )
        return None
    if not value.isascii() or not value.isprintable():
        raise EnvironmentFault(
            f"engine openai: the environment variable {variable} holds characters that no key has; "
            "set it to the server's key"
        )
    return value
