"""Start a KServe v2 server if the suite says so, read its metadata, and send requests to it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.engines import broken, engine_error, refuse_conflicts, serving
from pytest_mlperf.adapters.engines.tasks import TaskOptions
from pytest_mlperf.adapters.engines.tasks.graph import NUMPY, Graph, Tensor, matches_shape
from pytest_mlperf.adapters.engines.triton import _clients
from pytest_mlperf.adapters.lazy import NDArray
from pytest_mlperf.extension import sha256

TYPES = {
    "BOOL": "tensor(bool)",
    "UINT8": "tensor(uint8)",
    "INT8": "tensor(int8)",
    "INT32": "tensor(int32)",
    "INT64": "tensor(int64)",
    "FP16": "tensor(float16)",
    "FP32": "tensor(float)",
    "FP64": "tensor(double)",
}
"""Names of KServe's datatypes in the tasks; others keep the server's name."""

BINARY = "binary_tensor_data"
"""Extension for arrays as bytes over HTTP; without it they are text in JSON."""

CACHED = "response_cache"

SHOWN_CONFIG = ("backend", "instance_group", "dynamic_batching", "optimization")
"""Parts of a configuration that decide speed; the rest is in its hash."""

HEALTH = "/v2/health/ready"

GRPC_PORT = "{grpc_port}"

EXIT_DELAY_SECONDS = 1.0
"""Time from a broken connection to the visible end of the process behind it."""

SERVER, MODEL = "the server was not ready", "the model was not ready, or does not exist"


@dataclass(frozen=True, kw_only=True)
class TritonOptions(TaskOptions):
    """Options of engine triton.

    Attributes:
        served_model: Name of the model on the server.
        model_version: Version of the model; "" lets the server choose.
        protocol: "http" or "grpc".
        url: Address of a running server: HOST:PORT, or a URL with http, https, grpc or grpcs. The
            default is Triton's default port for the protocol on this machine.
        serve: Command that starts the server, in which {model}, {host}, {port} (HTTP) and
            {grpc_port} are replaced. The server and all its descendants are stopped at the end.
        environment: Additional environment variables of a server started by `serve`.
        start_timeout: Maximum time until server and model are ready [s].
        request_timeout: Maximum time until a response is complete [s].
        concurrency: Maximum number of requests in flight, each on its own connection.
        batch_size: Maximum number of samples per request; of image windows with task "segment".
        binary: Whether HTTP requests carry arrays as bytes instead of JSON numbers. None uses bytes
            if the server has the extension binary_tensor_data.
    """

    served_model: str
    model_version: str = ""
    protocol: str = "http"
    url: str | None = None
    serve: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0
    request_timeout: float = 60.0
    concurrency: int = 16
    binary: bool | None = None
    batch_size: int = 1


def _server_facts(metadata: Mapping[str, Any], where: str) -> Mapping[str, str]:
    extensions = metadata.get("extensions") or []
    if not isinstance(metadata.get("name"), str) or not isinstance(extensions, list):
        raise broken(
            where,
            "the server there is no KServe v2 server: its metadata lacks a name or a list of "
            f"extensions ({_short(metadata)}); correct url",
        )
    return {
        "server": metadata["name"],
        "server_version": str(metadata.get("version") or ""),
        "server_extensions": ",".join(sorted(map(str, extensions))),
    }


def _check_config(config: Mapping[str, Any], batch_size: int, where: str) -> None:
    """Raise an error if `batch_size` is too large or the server caches responses."""
    largest = config.get("max_batch_size")
    if type(largest) is int and 0 < largest < batch_size:
        raise broken(
            where,
            f"its configuration has max_batch_size = {largest}, but batch_size = "
            f"{batch_size}; lower batch_size, or raise max_batch_size on the server",
        )
    cache = config.get(CACHED)
    if isinstance(cache, Mapping) and cache.get("enable"):
        raise broken(
            where,
            f"its configuration has {CACHED} enabled, so repeated samples would be "
            f"answered from memory and not by the model; disable {CACHED} in config.pbtxt",
        )


def _model_facts(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Return fingerprint facts of a model; `config` is Triton's, {} for other servers."""
    versions = metadata.get("versions") or []
    versions = versions if isinstance(versions, list) else [versions]
    facts = {
        "model_versions": ",".join(map(str, versions)),
        "platform": str(metadata.get("platform") or ""),
    }
    if config:
        for name in SHOWN_CONFIG:
            if value := config.get(name):
                text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
                facts[f"config.{name}"] = text
        text = json.dumps(config, sort_keys=True)
        facts["config.max_batch_size"] = str(config.get("max_batch_size", 0))
        facts["config_sha256"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return facts


def _inputs(metadata: Mapping[str, Any], where: str) -> tuple[Tensor, ...]:
    inputs = _tensors(metadata, "inputs", where)
    for tensor in inputs:
        if tensor.type not in NUMPY:
            problem = f"is {tensor.type}; this engine sends {', '.join(TYPES)}"
            raise broken(where, f"its input {tensor.name!r} {problem}")
        if not tensor.shape:
            raise broken(where, f"its input {tensor.name!r} has no batch dimension")
    return inputs


def _tensors(metadata: Mapping[str, Any], key: str, where: str) -> tuple[Tensor, ...]:
    listed = metadata.get(key)
    if not isinstance(listed, list) or not listed:
        raise broken(
            where,
            f"its metadata names no {key}, which the engine needs for its requests; "
            "complete the model's settings on the server",
        )
    tensors = []
    for entry in listed:
        try:
            kind = str(entry["datatype"])
            # Over gRPC, 64-bit numbers come as text.
            lengths = [int(length) for length in entry.get("shape", ())]
            name = entry["name"]
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
            raise broken(
                where,
                f"its metadata has {key} that cannot be read: {_short(entry)}; expected "
                "a name, a datatype and a shape of whole numbers",
            ) from error
        shape = tuple(length if length >= 0 else None for length in lengths)  # -1 is any length
        tensors.append(Tensor(name=str(name), type=TYPES.get(kind, kind), shape=shape))
    return tuple(tensors)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


class ClientPool:
    """Create one client per thread, and count the requests of all clients."""

    def __init__(self, connect: Callable[[], _clients.Connection]) -> None:
        self.answered = 0
        self.under_way = 0
        self._connect = connect
        self._clients: list[_clients.Connection] = []
        self._local = threading.local()
        self._lock = threading.Lock()
        self._version = ""

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> Sequence[NDArray[Any]]:
        """Return the outputs; raise an error if the model version has changed. Thread-safe."""
        client = self._client()
        with self._lock:
            self.under_way += 1
        try:
            arrays, version = client.infer(inputs, outputs)
        finally:
            with self._lock:
                self.under_way -= 1
        with self._lock:
            expected, self._version = self._version, self._version or version
            self.answered += expected in ("", version)
        if expected not in ("", version):
            raise _clients.RequestError(
                f"version {version!r} of the model answered, but version {expected!r} did before; "
                "set model_version, and do not change the model during a run"
            )
        return arrays

    def _client(self) -> _clients.Connection:
        client: _clients.Connection | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._connect()
            with self._lock:
                self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()


@dataclass(frozen=True, kw_only=True)
class RemoteGraph(Graph):
    requests: ClientPool
    explain: Callable[[_clients.RequestError], RunError]

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]
    ) -> Sequence[NDArray[Any]]:
        try:
            arrays = self.requests.infer(feed, outputs)
        except _clients.RequestError as error:
            raise self.explain(error) from error
        tensors = {each.name: each for each in self.outputs}
        for name, array in zip(outputs, arrays, strict=True):
            dtype = NUMPY.get(tensors[name].type, array.dtype)
            if array.dtype != dtype or not matches_shape(array.shape, tensors[name].shape):
                raise self.refuse(
                    f"output {name!r} is {dtype} of shape {tensors[name].shape} by the server's "
                    f"description, but an answer has {array.dtype} of shape {array.shape}"
                )
        return arrays


def _conflicts(options: TritonOptions) -> Iterator[Sequence[Any]]:
    text = "url is for a server that runs already, and serve starts one on a port of its own"
    both = options.serve is not None and options.url is not None
    yield both, f"{text}; leave one of them out", "url", "serve"
    text = "environment is for a server that serve starts, and there is no serve; leave it out"
    yield options.serve is None and options.environment, text, "environment", "serve"
    text = f'binary is for protocol = "http", but protocol = "{options.protocol}"; leave it out'
    yield options.binary is not None and options.protocol != "http", text, "binary", "protocol"


class Service:
    """Connect to a server with the model; start the server first if option `serve` is set."""

    def __init__(self, options: TritonOptions, model: str | None) -> None:
        self._options = options
        self._model = model
        self._address = _clients.ServiceAddress.of(options.protocol, options.url or "localhost")
        self._server: serving.Server | None = None
        self._bytes = False
        self._hung_up = False
        self._requests = ClientPool(self._connect)
        refuse_conflicts("triton", _conflicts(options))
        if options.serve is not None:
            self._new_server(grpc_port=1)

    def require(self) -> None:
        if self._options.serve is not None:
            self._new_server(grpc_port=1).require()

    def reach(self) -> None:
        if self._options.serve is None:
            serving.require_listening("triton", self._address.host.strip("[]"), self._address.port)

    def open(self, undo: ExitStack) -> None:
        """Start the server, if `serve` is set, and read its metadata; `undo` stops the server."""
        if self._options.serve is not None:
            port = serving.free_port()
            self._server = undo.enter_context(self._new_server(grpc_port=port))
            is_http = self._options.protocol == "http"
            url = self._server.url if is_http else f"{serving.HOST}:{port}"
            self._address = _clients.ServiceAddress.of(self._options.protocol, url)
        with closing(self._connect()) as first:
            self._read_metadata(first)
        binary = self._options.binary
        has_bytes = BINARY in self._facts["server_extensions"].split(",")
        self._bytes = has_bytes if binary is None else binary

    def hang_up(self) -> None:
        self._hung_up = True
        self._requests.close()

    @property
    def where(self) -> str:
        return f"model {self._options.served_model!r} at {self._address}"

    def graph(self) -> RemoteGraph:
        """Return the model for inference; raise if batch_size is too large or responses cached."""
        _check_config(self._config, self._options.batch_size, self.where)
        return RemoteGraph(
            where=self.where,
            inputs=self._inputs,
            outputs=self._outputs,
            requests=self._requests,
            explain=self._explain,
        )

    def describe(self) -> Mapping[str, str]:
        options = self._options
        facts = {
            **self._facts,
            **_model_facts(self._metadata, self._config),
            "served_model": options.served_model,
            "model_version": options.model_version or "chosen by the server",
            "protocol": self._address.protocol,
            "reach": self._address.reach,
        }
        if self._address.protocol == "http":
            facts["arrays"] = "bytes" if self._bytes else "JSON"
        if options.serve is not None:
            # Paths are cut to the last part, which names no user.
            words = (PurePath(w).name if w.startswith(("/", "~")) else w for w in options.serve)
            facts["serve"] = " ".join(words)
            facts |= {f"environment.{name}": v for name, v in options.environment.items()}
            # Only a running server knows which weights it has loaded.
            if self._model is not None and (digest := _sha256(Path(self._model))):
                facts["weights_sha256"] = digest[:16]
        return facts

    def _new_server(self, *, grpc_port: int) -> serving.Server:
        words = self._options.serve or ()
        return serving.Server(
            [word.replace(GRPC_PORT, str(grpc_port)) for word in words],
            engine="triton",
            model=self._model,
            health=HEALTH,
            start_timeout_s=self._options.start_timeout,
            environment=self._options.environment,
        )

    def _connect(self) -> _clients.Connection:
        options = self._options
        named = (self._address, options.served_model, options.model_version)
        if self._address.protocol == "grpc":
            return _clients.GrpcClient(*named, timeout_s=options.request_timeout)
        return _clients.HttpClient(*named, timeout_s=options.request_timeout, binary=self._bytes)

    def _read_metadata(self, client: _clients.Connection) -> None:
        try:
            self._wait(client)
            self._facts = _server_facts(client.server(), self.where)
            self._metadata, self._config = client.model(), client.config()
            self._inputs = _inputs(self._metadata, self.where)
            self._outputs = _tensors(self._metadata, "outputs", self.where)
        except _clients.RequestError as error:
            if self._server is not None:
                self._server.check()
                message = f"{self.where}: {error}{self._server.log_tail()}"
                raise engine_error(message, str(self._server.log)) from error
            advice = (
                "start the server, correct url, or let serve start one"
                if error.lost
                else "correct url, or see the server's log"
            )
            raise broken(self.where, f"{error}; {advice}") from error

    def _wait(self, client: _clients.Connection) -> None:
        timeout_s, name = self._options.start_timeout, self._options.served_model
        deadline = time.monotonic() + timeout_s
        pause_s, lacks = serving.MIN_PAUSE_SECONDS, ""
        while True:
            try:
                lacks = _lacks(client)
            except _clients.RequestError as error:
                if self._server is None or not error.lost or time.monotonic() > deadline:
                    raise
                self._server.check()
                lacks = str(error)
            if not lacks:
                return
            if lacks == MODEL and (names := client.names()) and name not in names:
                raise broken(
                    self.where,
                    f"the server has only these models: {', '.join(names)}; correct served_model",
                )
            if time.monotonic() + pause_s > deadline:
                log_tail = "" if self._server is None else self._server.log_tail()
                raise broken(
                    self.where,
                    f"within start_timeout = {timeout_s:g} s, {lacks}; raise start_timeout, or "
                    f"correct {'serve' if self._server else 'url'} or served_model{log_tail}",
                )
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, serving.MAX_PAUSE_SECONDS)

    def _explain(self, error: _clients.RequestError) -> RunError:
        others = self._requests.under_way
        counts = f"{self._requests.answered:,} requests were answered before" + (
            f", {others:,} more were in flight" if others else ""
        )
        failure = "the server is gone" if error.lost else "a request failed"
        message = f"{self.where}: {failure} ({error}); {counts}"
        if self._server is None:
            return engine_error(message)
        try:
            self._server.check(EXIT_DELAY_SECONDS if error.lost and not self._hung_up else 0.0)
        except RunError as ended:
            return engine_error(f"{message}; {ended}", ended.log)
        return engine_error(f"{message}{self._server.log_tail()}", str(self._server.log))


def _lacks(client: _clients.Connection) -> str:
    if client.model_ready():
        return ""
    # A server says that it is not ready while any of its models is not.
    return MODEL if client.server_ready() else SERVER


def _sha256(model: Path) -> str:
    if not model.is_dir():
        return sha256([model]) if model.is_file() else ""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    names = [f"{path.relative_to(model).as_posix()} {sha256([path])}" for path in files]
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""
