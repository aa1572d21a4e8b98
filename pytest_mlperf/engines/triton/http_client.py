"""KServe v2 over HTTP: tritonclient writes and reads the messages, http.client carries them.

tritonclient's own connection runs on gevent, whose sockets belong to the thread that made them:
they cannot be closed from another one when a server hangs.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_mlperf.engines.server_json import LARGEST_PAGE, parse_json
from pytest_mlperf.engines.triton.address import Address
from pytest_mlperf.engines.triton.client import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER_LENGTH = "Inference-Header-Content-Length"

IDLE_S = 1.0
"""A server may close a connection that rests; one that was just used it has no reason to."""

LARGEST_ANSWER = 1 << 31
"""Bytes of an answer with arrays at most: what gRPC's messages can hold."""

PIECE = 1 << 20
"""Bytes that are read at a time of an answer which does not say how long it is."""

OK = 200


class HttpClient:
    """One connection that is kept open, and opened again when the server closed it at rest."""

    def __init__(
        self, address: Address, model: str, version: str, *, timeout_s: float, binary: bool
    ) -> None:
        """Connect at the first request.

        Args:
            address: Of the server.
            model: Name of a model.
            version: Of the model; "" leaves it to the server.
            timeout_s: Time in which something must come back.
            binary: Whether arrays are sent and asked for as bytes behind the JSON, not in it.
        """
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        host = address.host.strip("[]")
        self._connection = kind(host, address.port, timeout=timeout_s)
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
        """Whether GET v2/health/ready gives 200."""
        return self._ask("health/ready")[0] == OK

    def model_ready(self) -> bool:
        """Whether GET v2/models/MODEL/ready gives 200."""
        return self._ask(f"{self._model}/ready")[0] == OK

    def server(self) -> Mapping[str, Any]:
        """Return what GET v2 gives."""
        return self._read("")

    def model(self) -> Mapping[str, Any]:
        """Return what GET v2/models/MODEL gives."""
        return self._read(self._model)

    def config(self) -> Mapping[str, Any]:
        """Return what GET v2/models/MODEL/config gives; {} if the server has no such page."""
        status, _, _ = answer = self._ask(f"{self._model}/config")
        return _parse(answer) if status == OK else {}

    def names(self) -> Sequence[str]:
        """Return the names in the server's repository, where it has that extension."""
        status, _, data = self._ask("repository/index", b"{}")
        try:
            return [str(each["name"]) for each in parse_json(data)] if status == OK else []
        except (ValueError, TypeError, KeyError):
            return []

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> tuple[Sequence[NDArray[Any]], str]:
        """Return outputs, and the version of the model that gave them."""
        from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
        from tritonclient.utils import np_to_triton_dtype

        given = []
        for name, array in inputs.items():
            each = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            given.append(each.set_data_from_numpy(array, binary_data=self._binary))
        wanted = [InferRequestedOutput(name, binary_data=self._binary) for name in outputs]
        body, length = InferenceServerClient.generate_request_body(given, outputs=wanted)
        status, headers, data = answer = self._ask(
            f"{self._model}/infer", body, length, most=LARGEST_ANSWER
        )
        if status != OK:
            raise _refusal(answer)
        try:
            said = headers.get(HEADER_LENGTH)
            result = InferenceServerClient.parse_response_body(
                data, header_length=None if said is None else int(said)
            )
            arrays = [result.as_numpy(name) for name in outputs]
            version = str(result.get_response().get("model_version") or "")
        # What a broken answer makes of the parser is not foreseen.
        except Exception as error:
            raise RequestError(
                f"an answer that cannot be read ({type(error).__name__}: {error}): {_shown(data)}"
            ) from error
        return _whole(arrays, outputs), version

    def close(self) -> None:
        """Close the connection, also under a request of another thread: that then fails."""
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
        most: int = LARGEST_PAGE,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Return status, headers and body; a body makes it a POST.

        Args:
            path: Behind v2/.
            body: What to send.
            length: Bytes of it that are JSON, if not all.
            most: Bytes of an answer.
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
                # The server closed it while this request was on its way.
                self._connection.close()
                self._refresh()
                return self._exchange(method, target, body, headers, most)
            except BaseException as error:
                self._connection.close()
                if isinstance(error, OSError | http.client.HTTPException):
                    raise self._failure(error) from error
                raise

    def _refresh(self) -> bool:
        """Connect if need be; tell whether there is a connection that has rested."""
        if self._closed:
            raise ConnectionError("closed here")
        sock = self._connection.sock
        # At rest nothing comes but the server's end of the connection.
        if sock is not None and select.select([sock], [], [], 0)[0]:
            self._connection.close()
            sock = None
        if sock is not None:
            return time.monotonic() - self._used_s > IDLE_S
        self._connection.connect()
        assert self._connection.sock is not None
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return False

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], most: int
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        self._connection.request(method, target, body, headers)
        # One that ends with its connection is the connection's no longer: it is closed here.
        with self._connection.getresponse() as response:
            data = _body(response, most)
        self._used_s = time.monotonic()
        return response.status, response.headers, data

    def _failure(self, error: Exception) -> RequestError:
        if isinstance(error, TimeoutError):
            return RequestError(f"no answer within {self._timeout_s:g} s")
        if isinstance(error, http.client.IncompleteRead):
            return RequestError("it broke off in the middle of an answer", lost=True)
        if not isinstance(error, OSError):
            return RequestError(f"what came back is no HTTP: {error}")
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RequestError(words, lost=True)


BINARY = "application/octet-stream"


def _body(response: http.client.HTTPResponse, most: int) -> bytes:
    """Read an answer, of which no more is kept in memory than it may have.

    Raises:
        RequestError: It is longer.
    """
    if response.length is not None and response.length <= most:
        return response.read()
    body = bytearray()
    while response.length is None and len(body) <= most and (piece := response.read(PIECE)):
        body += piece
    if response.length is not None or len(body) > most:
        raise RequestError(f"an answer of more than {most >> 20} MiB")
    return bytes(body)


def _whole(arrays: Sequence[NDArray[Any] | None], outputs: Sequence[str]) -> Sequence[NDArray[Any]]:
    """Refuse an answer that lacks an output."""
    for name, array in zip(outputs, arrays, strict=True):
        if array is None:
            raise RequestError(f"an answer without output {name!r}")
    return [array for array in arrays if array is not None]


def _parse(answer: tuple[int, http.client.HTTPMessage, bytes]) -> Mapping[str, Any]:
    try:
        found = parse_json(answer[2])
    except ValueError as error:
        raise RequestError(f"an answer that is no JSON: {_shown(answer[2])}") from error
    if not isinstance(found, dict):
        raise RequestError(f"an answer that is no JSON object: {_shown(answer[2])}")
    return found


def _refusal(answer: tuple[int, http.client.HTTPMessage, bytes]) -> RequestError:
    """Return the server's refusal: KServe puts its reason under "error"."""
    status, _, data = answer
    try:
        said = str(parse_json(data)["error"])
    except (ValueError, TypeError, KeyError):
        said = _shown(data)
    reason = http.client.responses.get(status, "")
    return RequestError(f"HTTP {status} {reason}{': ' if said else ''}{said}")


def _shown(data: bytes) -> str:
    return data[:1000].decode("utf-8", "replace")
