"""Implement clients of KServe v2 over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import http.client
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from pytest_mlperf import SuiteError
from pytest_mlperf.adapters.engines import one_of, serving
from pytest_mlperf.adapters.engines.serving import MAX_PAGE_BYTES, parse_json
from pytest_mlperf.adapters.lazy import NDArray
from pytest_mlperf.extension import require_options

PORTS = {"http": 8000, "grpc": 8001}
"""Protocols, and Triton's default port of each."""

SECURE = {"http": "https", "grpc": "grpcs"}

LOCAL = re.compile(r"localhost|127\.\d+\.\d+\.\d+|\[::1\]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceAddress:
    """Hold a server's address; `path`: part of the URL before /v2; an IPv6 `host` has brackets."""

    protocol: str
    host: str
    port: int
    path: str
    secure: bool

    @classmethod
    def of(cls, protocol: str, url: str) -> Self:
        """Parse "HOST:PORT", or a URL whose scheme fits `protocol`, "http" or "grpc"."""
        require_options("engine triton", [one_of("protocol", protocol, tuple(PORTS))])
        match = re.fullmatch(
            r"(?:(?P<scheme>\w+)://)?(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?"
            r"(?P<path>(?:/[\w.~%-]+)*)/?",
            url,
        )
        schemes = (None, protocol, SECURE[protocol])
        if (
            match is None
            or not serving.is_host(match["host"])
            or match["scheme"] not in schemes
            or (match["path"] and protocol != "http")
        ):
            raise SuiteError(
                f'engine triton: url = {url!r} is not an address for protocol = "{protocol}"; '
                f'e.g. "localhost:{PORTS[protocol]}" or '
                f'"{SECURE[protocol]}://models.example:443"',
                option=("url", "protocol"),
            )
        port = int(match["port"] or PORTS[protocol])
        if not 0 < port < 1 << 16:
            raise SuiteError(
                f"engine triton: url = {url!r} has port {port}; ports are from 1 to 65535",
                option="url",
            )
        return cls(
            protocol=protocol,
            host=match["host"],
            port=port,
            path=match["path"],
            secure=match["scheme"] == SECURE[protocol],
        )

    def __str__(self) -> str:
        scheme = SECURE[self.protocol] if self.secure else self.protocol
        return f"{scheme}://{self.host}:{self.port}{self.path}"

    @property
    def reach(self) -> str:
        """Network to the server: "loopback" for an address on this machine, else "network"."""
        return "loopback" if LOCAL.fullmatch(self.host) else "network"


MAX_MESSAGE_CHARACTERS = 300


class RequestError(Exception):
    """Report a failed request or unreadable response; `lost`: whether the connection was lost."""

    def __init__(self, text: str, *, lost: bool = False) -> None:
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        super().__init__(
            line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[:MAX_MESSAGE_CHARACTERS]}…"
        )
        self.lost = lost


def _tensors(kind: Any, inputs: Mapping[str, NDArray[Any]], **settings: Any) -> list[Any]:
    from tritonclient.utils import np_to_triton_dtype

    return [
        kind(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(
            array, **settings
        )
        for name, array in inputs.items()
    ]


OPTIONS = (
    # Samples and answers may be larger than gRPC's 4 MiB.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Clients of one server would share a connection, and large messages wait for each other.
    ("grpc.use_local_subchannel_pool", 1),
    # As over HTTP, no proxy that a variable of the environment names stands in between.
    ("grpc.enable_http_proxy", 0),
)

LOST_STATUSES = frozenset({"StatusCode.UNAVAILABLE", "StatusCode.CANCELLED"})


class GrpcClient:
    """Talk to a server over gRPC, by a channel with a connection of its own.

    A client serves one thread at a time; every method but `close` may raise RequestError.
    """

    def __init__(
        self, address: ServiceAddress, model: str, version: str, *, timeout_s: float
    ) -> None:
        from tritonclient.grpc import InferenceServerClient

        self._client = InferenceServerClient(
            f"{address.host}:{address.port}", ssl=address.secure, channel_args=list(OPTIONS)
        )
        self._named = {"model_name": model, "model_version": version}
        self._timeout_s = timeout_s

    def server_ready(self) -> bool:
        return bool(self._call(self._client.is_server_ready))

    def model_ready(self) -> bool:
        """Whether the server reports the model as ready; False for an unknown model."""
        return bool(self._answer_or_none(self._call, self._client.is_model_ready))

    def server(self) -> Mapping[str, Any]:
        return self._read(self._client.get_server_metadata)

    def model(self) -> Mapping[str, Any]:
        return self._read(self._client.get_model_metadata, **self._named)

    def config(self) -> Mapping[str, Any]:
        """Return the model's configuration in Triton's format; {} if the server provides none."""
        answer = self._answer_or_none(self._read, self._client.get_model_config) or {}
        config = answer.get("config")
        return config if isinstance(config, dict) else {}

    def names(self) -> Sequence[str]:
        """Return the names of the models on the server; empty if it does not list them."""
        try:
            index = self._read(self._client.get_model_repository_index)
        except RequestError:
            return []
        return [str(each.get("name")) for each in index.get("models", ())]

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> tuple[Sequence[NDArray[Any]], str]:
        """Send an inference request; return the named outputs and the model version.

        Inputs are arrays by name, with the data types in the model's metadata.
        """
        from tritonclient.grpc import InferInput, InferRequestedOutput

        tensors = _tensors(InferInput, inputs)
        requested = [InferRequestedOutput(name) for name in outputs]
        result = self._call(self._client.infer, inputs=tensors, outputs=requested, **self._named)
        arrays = []
        for name in outputs:
            try:
                array = result.as_numpy(name)
            # A broken response can make the parser raise anything.
            except Exception as error:
                raise RequestError(
                    f"an answer whose output {name!r} cannot be read "
                    f"({type(error).__name__}: {error})"
                ) from error
            if array is None:
                raise RequestError(f"an answer without output {name!r}")
            arrays.append(array)
        return arrays, str(result.get_response().model_version)

    def close(self) -> None:
        """Close the connection; requests in flight in other threads then fail."""
        self._client.close()

    def _answer_or_none(self, call: Callable[..., Any], method: Callable[..., Any]) -> Any:
        """Return the result of `call(method)` about the model; None if the server refuses it."""
        try:
            return call(method, **self._named)
        except RequestError as error:
            if error.lost:
                raise
            return None

    def _read(self, method: Callable[..., Any], **arguments: Any) -> Mapping[str, Any]:
        message: Mapping[str, Any] = self._call(method, as_json=True, **arguments)
        return message

    def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return method(client_timeout=self._timeout_s, **arguments)
        except InferenceServerException as error:
            status, words = str(error.status()), str(error.message())
            if status == "StatusCode.DEADLINE_EXCEEDED":
                raise RequestError(f"no answer within {self._timeout_s:g} s") from error
            text = f"gRPC {status.removeprefix('StatusCode.')}: {words}"
            raise RequestError(text, lost=status in LOST_STATUSES) from error
        except ValueError as error:  # gRPC raises it if the channel is closed
            raise RequestError(str(error), lost=True) from error


HEADER_LENGTH = "Inference-Header-Content-Length"

MAX_IDLE_SECONDS = 1.0
"""Idle time after which a server may have closed a connection."""

MAX_ANSWER_BYTES = 1 << 31
"""Maximum bytes of a response with arrays: that of gRPC's messages."""

READ_PIECE_BYTES = 1 << 20
"""Bytes that are read at a time of a response without a stated length."""

OK = 200


class HttpClient:
    """Send requests over a persistent HTTP connection; reconnect if the server closed it.

    tritonclient encodes and decodes the messages, but http.client sends them: tritonclient's own
    connections use gevent, whose sockets cannot be closed from another thread when a server hangs.
    Measured with an echo server, a request took 248 us (87 us of CPU time) with http.client, and
    430 us (229 us) with aiohttp on its own event loop.
    """

    def __init__(
        self, address: ServiceAddress, model: str, version: str, *, timeout_s: float, binary: bool
    ) -> None:
        """Prepare the client; the first request connects.

        If `binary`, arrays are sent as bytes after the JSON header, else as numbers in the JSON.
        """
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        self._connection = kind(address.host.strip("[]"), address.port, timeout=timeout_s)
        self._connection.auto_open = 0
        self._base = f"{address.path}/v2"
        self._model = f"models/{quote(model, safe='')}"
        if version:
            self._model += f"/versions/{quote(version, safe='')}"
        self._timeout_s = timeout_s
        self._binary = binary
        self._lock = threading.Lock()
        self._closed = False
        self._used_s = 0.0

    def server_ready(self) -> bool:
        return self._ask("health/ready")[0] == OK

    def model_ready(self) -> bool:
        return self._ask(f"{self._model}/ready")[0] == OK

    def server(self) -> Mapping[str, Any]:
        return self._read("")

    def model(self) -> Mapping[str, Any]:
        return self._read(self._model)

    def config(self) -> Mapping[str, Any]:
        status, _, _ = answer = self._ask(f"{self._model}/config")
        return _parse(answer) if status == OK else {}

    def names(self) -> Sequence[str]:
        status, _, data = self._ask("repository/index", b"{}")
        try:
            return [str(each["name"]) for each in parse_json(data)] if status == OK else []
        except (ValueError, TypeError, KeyError):
            return []

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> tuple[Sequence[NDArray[Any]], str]:
        from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

        tensors = _tensors(InferInput, inputs, binary_data=self._binary)
        requested = [InferRequestedOutput(name, binary_data=self._binary) for name in outputs]
        body, length = InferenceServerClient.generate_request_body(tensors, outputs=requested)
        status, headers, data = answer = self._ask(
            f"{self._model}/infer", body, length, most=MAX_ANSWER_BYTES
        )
        if status != OK:
            raise _refusal(answer)
        try:
            header_length = headers.get(HEADER_LENGTH)
            result = InferenceServerClient.parse_response_body(
                data, header_length=None if header_length is None else int(header_length)
            )
            arrays = {name: result.as_numpy(name) for name in outputs}
            version = str(result.get_response().get("model_version") or "")
        # A broken response can make the parser raise anything.
        except Exception as error:
            raise RequestError(
                f"an answer that cannot be read ({type(error).__name__}: {error}): {_shown(data)}"
            ) from error
        if absent := [name for name, array in arrays.items() if array is None]:
            raise RequestError(f"an answer without output {absent[0]!r}")
        return list(arrays.values()), version

    def close(self) -> None:
        self._closed = True
        if (used := self._connection.sock) is not None:
            with contextlib.suppress(OSError):
                used.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._connection.close()

    def _read(self, path: str) -> Mapping[str, Any]:
        status, _, _ = answer = self._ask(path)
        if status != OK:
            raise _refusal(answer)
        return _parse(answer)

    def _ask(
        self,
        path: str,
        body: bytes | None = None,
        length: int | None = None,
        *,
        most: int = MAX_PAGE_BYTES,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request; return the status, headers and body of the response.

        A request with a body is a POST. If the body is JSON followed by bytes, `length` is the
        length of the JSON. A response body of more than `most` bytes is an error.
        """
        headers = {"Content-Type": "application/json" if length is None else BINARY}
        if length is not None:
            headers[HEADER_LENGTH] = str(length)
        method, target = "GET" if body is None else "POST", f"{self._base}/{path}".rstrip("/")
        with self._lock:
            try:
                rested = self._refresh()
                try:
                    return self._exchange(method, target, body, headers, most)
                except ConnectionError:
                    if not rested or self._closed:
                        raise
                # The server closed the connection while this request was sent.
                self._connection.close()
                self._refresh()
                return self._exchange(method, target, body, headers, most)
            except BaseException as error:
                self._connection.close()
                if isinstance(error, OSError | http.client.HTTPException):
                    raise self._failure(error) from error
                raise

    def _refresh(self) -> bool:
        if self._closed:
            raise ConnectionError("closed here")
        sock = self._connection.sock
        # An idle connection is readable only if the server has closed it.
        if sock is not None and select.select([sock], [], [], 0)[0]:
            self._connection.close()
            sock = None
        if sock is not None:
            return time.monotonic() - self._used_s > MAX_IDLE_SECONDS
        self._connection.connect()
        assert self._connection.sock is not None
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return False

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], most: int
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        self._connection.request(method, target, body, headers)
        # A response that ends with its connection must be closed separately.
        with self._connection.getresponse() as response:
            data = _body(response, most)
        self._used_s = time.monotonic()
        return response.status, response.headers, data

    def _failure(self, error: Exception) -> RequestError:
        if isinstance(error, TimeoutError):
            return RequestError(f"no answer within {self._timeout_s:g} s")
        if isinstance(error, http.client.IncompleteRead):
            return RequestError("the connection ended in the middle of an answer", lost=True)
        if not isinstance(error, OSError):
            return RequestError(f"the answer is not HTTP: {error}")
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RequestError(words, lost=True)


Connection = GrpcClient | HttpClient

BINARY = "application/octet-stream"


def _body(response: http.client.HTTPResponse, most: int) -> bytes:
    """Read a response's body; raise RequestError if it has more than `most` bytes."""
    if response.length is not None and response.length <= most:
        return response.read()
    body = bytearray()
    while (
        response.length is None and len(body) <= most and (piece := response.read(READ_PIECE_BYTES))
    ):
        body += piece
    if response.length is not None or len(body) > most:
        raise RequestError(f"an answer of more than {most >> 20} MiB")
    return bytes(body)


def _parse(answer: tuple[int, http.client.HTTPMessage, bytes]) -> Mapping[str, Any]:
    try:
        page = parse_json(answer[2])
    except ValueError as error:
        raise RequestError(f"an answer that is not JSON: {_shown(answer[2])}") from error
    if not isinstance(page, dict):
        raise RequestError(f"an answer that is not a JSON object: {_shown(answer[2])}")
    return page


def _refusal(answer: tuple[int, http.client.HTTPMessage, bytes]) -> RequestError:
    status, _, data = answer
    try:
        detail = str(parse_json(data)["error"])
    except (ValueError, TypeError, KeyError):
        detail = _shown(data)
    reason = http.client.responses.get(status, "")
    return RequestError(f"HTTP {status} {reason}{': ' if detail else ''}{detail}")


def _shown(data: bytes) -> str:
    return data[:1000].decode("utf-8", "replace")
