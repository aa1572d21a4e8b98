"""Parse the address of a server; read the secrets of requests from environment variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, urlsplit

from pytest_mlperf import EnvironmentFault, SuiteError

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
"""Path of requests below that of the API, by option `api`."""

API_VERSION = re.compile(r"/v\d+$")

AZURE_DEPLOYMENT = re.compile(r"/openai/deployments/[^/]+$")
"""End of a path that Azure's API is directly below."""

SECRET_NAME = re.compile(r"(.*[-_.])?(key|token|secret|sig|signature|password|code)", re.IGNORECASE)
"""Names of query parameters whose values are keys, such as `subscription-key` and `code`."""

DEFAULT_KEY = "OPENAI_API_KEY"
"""Environment variable that may be missing; a variable named in a suite must be set."""

AUTHENTICATING = re.compile("auth|key|token", re.IGNORECASE)
"""Names of headers that authenticate, so that `DEFAULT_KEY` is not sent beside them."""

SCHEME = re.compile(r"^(bearer|basic|token|api-?key)\s+", re.IGNORECASE)
"""Beginning of a header's value that is no secret."""

MASK = "***"

MIN_WHOLE_CHARACTERS = 8
"""Length from which a secret is masked inside words, too."""

MIN_PART_CHARACTERS = 4
"""Minimum length of a secret's beginning that is masked at the end of a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Hold the address of a server.

    Attributes:
        root: URL up to the API's path; "unix:" and the path of a socket.
        api: Path of the API below it: "/v1", or "".
        query: Query of each request with its "?", or "".
    """

    root: str
    api: str = "/v1"
    query: str = ""

    @classmethod
    def of(cls, url: str, api: str = "completions") -> Self:
        """Parse option `url`: the address of a server, of its API, or of its request path.

        Raises:
            SuiteError: `url` is invalid, holds a secret, or belongs to another `api`.
        """
        try:
            parts = urlsplit(url)
            _ = parts.port  # an invalid port is refused on access
        except ValueError:
            parts = urlsplit("")
        if parts.username or parts.password:
            raise SuiteError(
                "engine openai: url has a user or password, which would be recorded; put the key "
                "into an environment variable and its name into api_key_env",
                option=("url", "api_key_env"),
            )
        for name, _value in parse_qsl(parts.query, keep_blank_values=True):
            if SECRET_NAME.fullmatch(name):
                raise SuiteError(
                    f"engine openai: url has {name} in its query, which would be recorded; put it "
                    "into an environment variable, and send that as a header: headers_env",
                    option=("url", "headers_env"),
                )
        if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
            if not parts.query and not parts.fragment:
                return cls(root=f"unix:{parts.path}")
        elif parts.scheme in ("http", "https") and parts.hostname and not parts.fragment:
            return cls._of_http(f"{parts.scheme}://{parts.netloc}", parts.path, parts.query, api)
        raise SuiteError(
            f'engine openai: url = {url!r} is not an address as "http://127.0.0.1:8000" or '
            '"unix:///run/server.sock"',
            option="url",
        )

    @classmethod
    def _of_http(cls, host: str, path: str, query: str, api: str) -> Self:
        path, is_whole = path.rstrip("/"), False
        for name in sorted(PATHS, key=lambda name: -len(PATHS[name])):
            if not is_whole and path.endswith(PATHS[name]):
                if name != api:
                    raise SuiteError(
                        f'engine openai: url ends in {PATHS[name]}, and api = "{api}": set api = '
                        f'"{name}", or leave that end out',
                        option=("url", "api"),
                    )
                path, is_whole = path.removesuffix(PATHS[name]), True
        version = API_VERSION.search(path)
        root = path[: version.start()] if version else path
        prefix = version[0] if version else "/v1"
        if not version and (is_whole or AZURE_DEPLOYMENT.search(path)):
            prefix = ""
        encoded = "?" + quote(query, safe="=&%/:?@+~!$'()*,;-._") if query else ""
        return cls(root=host + root, api=prefix, query=encoded)


class Secrets:
    """Mask secret values in text, also as JSON, Python literals and URLs write them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        words = {SCHEME.sub("", value, count=1) for value in values}
        forms = {
            form
            for word in words
            for plain in (word, repr(word)[1:-1], json.dumps(word)[1:-1], quote(word, safe=""))
            for form in (plain, plain.replace("/", r"\/"))
        }
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_pattern, self._forms)))

    def mask(self, text: str) -> str:
        """Return a text without the values, and without a value's beginning at its end."""
        if not self._forms:
            return text
        text = self._pattern.sub(MASK, text)
        body = text.rstrip("'\"…")
        for form in self._forms:
            for length in range(len(form) - 1, MIN_PART_CHARACTERS - 1, -1):
                if body.endswith(form[:length]):
                    return f"{body[:-length]}{MASK}{text[len(body) :]}"
        return text


def _pattern(form: str) -> str:
    pattern = re.escape(form)
    return pattern if len(form) >= MIN_WHOLE_CHARACTERS else rf"(?<!\w){pattern}(?!\w)"


def is_variable(name: str) -> bool:
    """Return whether a text can name an environment variable; most keys cannot."""
    return name.isidentifier()


def api_key(variable: str | None) -> str | None:
    """Return the key in an environment variable, or None if `DEFAULT_KEY` is not set."""
    if variable is None or (variable == DEFAULT_KEY and not os.environ.get(variable, "").strip()):
        return None
    return _value_of(variable, "api_key_env", f'api_key_env = "{variable}"')


def request_headers(key_variable: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that hold secrets; raise EnvironmentFault if a variable is not set."""
    headers = {
        name: _value_of(variable, "headers_env", f'headers_env has {name} = "{variable}"')
        for name, variable in variables.items()
    }
    if key_variable == DEFAULT_KEY and any(map(AUTHENTICATING.search, headers)):
        return headers
    key = api_key(key_variable)
    return headers if key is None else {"Authorization": f"Bearer {key}", **headers}


def _value_of(variable: str, option: str, setting: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise EnvironmentFault(
            f"engine openai: {setting}, but this environment variable is not set; set it to the "
            "value for the server",
            option=option,
        )
    if not value.isascii() or not value.isprintable():
        raise EnvironmentFault(
            f"engine openai: the environment variable {variable} contains characters that are "
            "invalid in a header; set it to the value for the server",
            option=option,
        )
    return value
