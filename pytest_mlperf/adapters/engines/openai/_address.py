"""Parse a server's address, and read the secrets in its requests from environment variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, urlsplit

from pytest_mlperf import EnvironmentFault, SuiteError
from pytest_mlperf.adapters.engines.serving import is_host

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
"""Path of requests below that of the API, by option `api`."""

FORM = re.compile(
    r"(?P<root>.*?(?P<azure>/openai/deployments/[^/]+)?)"
    r"(?P<api>/v\d+)?(?P<path>(/chat)?/completions)?/*"
)
"""Path of a url; Azure's API is directly below a deployment."""

SECRET_NAME = re.compile(
    r"(?i).*(key|token|secret|signature|password|credential)|(.*[-_.])?(sig|code|auth|pwd|pass)"
)
"""Names of query parameters whose values are keys, such as `subscription-key` and `code`."""

DEFAULT_KEY = "OPENAI_API_KEY"
"""Environment variable that may be missing; a variable named in a suite must be set."""

AUTHENTICATING = re.compile("auth|key|token", re.IGNORECASE)
"""Names of headers that authenticate, so that `DEFAULT_KEY` is not sent beside them."""

SCHEME = re.compile(r"^(bearer|basic|token|api-?key)\s+", re.IGNORECASE)
"""Beginning of a header's value that is not secret."""

MASK, MIN_WHOLE_CHARACTERS, MIN_PART_CHARACTERS = "***", 8, 4
"""Text for a secret, and lengths from which it is masked in words, and cut off at a text's end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Hold the address of a server.

    Attributes:
        root: URL up to the API's path, or "unix:" and the path of a socket.
        api: Path of the API after `root`: "/v1", or "".
        query: Query string that each request adds, with its "?", or "".
    """

    root: str
    api: str = "/v1"
    query: str = ""

    @property
    def is_plain(self) -> bool:
        return not self.root.startswith("unix:") and (self.api, self.query) == ("/v1", "")

    @classmethod
    def of(cls, url: str, api: str = "completions") -> Self:
        """Parse option `url`: the URL of a server, of its API, or of a request path in the API.

        Raises:
            SuiteError: `url` is invalid, contains a secret, or is for another `api`.
        """
        try:
            parts = urlsplit(url)
            is_web = parts.scheme in ("http", "https") and parts.port != 0
            is_http = is_web and is_host(parts.hostname or "")
        except ValueError:  # an invalid port is refused on access
            parts, is_http = urlsplit(""), False
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        secrets = [f"{name} in its query" for name in names if SECRET_NAME.fullmatch(name)]
        if secrets := ["a user or password"] * ("@" in parts.netloc) + secrets:
            raise SuiteError(
                f"engine openai: url has {secrets[0]}, which would be recorded; put it into an "
                "environment variable, and name that in api_key_env or headers_env",
                option=("url", "api_key_env", "headers_env"),
            )
        is_socket = parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc
        if parts.fragment or not (is_http or (is_socket and not parts.query)):
            raise SuiteError(
                f'engine openai: url = {url!r} is not an address such as "http://127.0.0.1:8000" '
                'or "unix:///run/server.sock"',
                option="url",
            )
        form = FORM.fullmatch("" if is_socket else parts.path)
        assert form is not None
        if form["path"] not in (None, PATHS[api]):
            named = next((name for name, path in PATHS.items() if path == form["path"]), api)
            raise SuiteError(
                f'engine openai: url ends in {form["path"]}, but api = "{api}"; remove that end '
                f'of url, or set api = "{named}"',
                option=("url", "api"),
            )
        prefix = form["api"] or ("" if form["path"] or form["azure"] else "/v1")
        query = "?" + quote(parts.query, safe="=&%/:?@+~!$'()*,;-._") if parts.query else ""
        root = f"unix:{parts.path}" if is_socket else f"{parts.scheme}://{parts.netloc}"
        return cls(root=root + form["root"].rstrip("/"), api=prefix, query=query)


class Secrets:
    """Mask secret values in texts, also in the escaped forms of JSON, Python literals and URLs."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {
            form
            for word in (SCHEME.sub("", value, count=1) for value in values)
            for plain in (word, repr(word)[1:-1], json.dumps(word)[1:-1], quote(word, safe=""))
            for form in (plain, plain.replace("/", r"\/"))
        }
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = "|".join(
            re.escape(form) if len(form) >= MIN_WHOLE_CHARACTERS else rf"\b{re.escape(form)}\b"
            for form in self._forms
        )

    def mask(self, text: str) -> str:
        """Mask secret values in a text, and the part of a secret value with which the text ends."""
        text = re.sub(self._pattern, MASK, text) if self._forms else text
        body = text.rstrip("'\"…")
        for form in self._forms:
            for length in range(len(form) - 1, MIN_PART_CHARACTERS - 1, -1):
                if body.endswith(form[:length]):
                    return f"{body[:-length]}{MASK}{text[len(body) :]}"
        return text


def request_headers(key_variable: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that hold secrets; raise EnvironmentFault if a variable is not set."""
    headers = {name: _value_of(at, f"headers_env has {name} = ") for name, at in variables.items()}
    by_default = key_variable == DEFAULT_KEY
    if key_variable is None or (by_default and any(map(AUTHENTICATING.search, headers))):
        return headers
    if by_default and not os.environ.get(DEFAULT_KEY, "").strip():
        return headers
    return {"Authorization": f"Bearer {_value_of(key_variable, 'api_key_env = ')}", **headers}


def _value_of(variable: str, setting: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        fault = f'{setting}"{variable}", but this environment variable is not set or is empty'
    elif not value.isascii() or not value.isprintable():
        fault = (
            f'{setting}"{variable}", but the value of this environment variable has characters '
            "that are invalid in a header"
        )
    else:
        return value
    raise EnvironmentFault(
        f"engine openai: {fault}; set it to the value for the server",
        option=setting.partition(" ")[0],
    )
