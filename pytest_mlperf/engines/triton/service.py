"""The server that a suite wants, and what is open to it while an engine is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Self

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.engines.files import sha256
from pytest_mlperf.engines.serving import HOST, Server, free_port
from pytest_mlperf.engines.triton.address import Address
from pytest_mlperf.engines.triton.client import Client, RequestError
from pytest_mlperf.engines.triton.meeting import meet
from pytest_mlperf.engines.triton.remote import RemoteGraph, Requests

HEALTH = "/v2/health/ready"

GRPC_PORT = "{grpc_port}"

END_S = 1.0
"""A connection breaks a moment before the end of the process behind it shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which model a suite wants, and where.

    Attributes:
        name: Of the model on the server.
        version: Of the model; "" leaves it to the server.
        address: Of a server that runs; of one that is started, the protocol only.
        serve: Command that starts a server, or None.
        environment: Variables for that.
        model: What {model} in it stands for.
        start_timeout_s: Time until server and model must be ready.
        request_timeout_s: Time in which an answer must come.
        binary: Whether HTTP carries arrays as bytes; None: where the server can.
    """

    name: str
    version: str
    address: Address
    serve: Sequence[str] | None
    environment: Mapping[str, str]
    model: str | None
    start_timeout_s: float
    request_timeout_s: float
    binary: bool | None

    @classmethod
    def of(cls, *, protocol: str, url: str | None, **given: Any) -> Self:
        """Check what the options of a suite say together.

        Raises:
            SuiteError: The address or the command means nothing, or one contradicts another.
        """
        wanted = cls(address=Address.of(protocol, url or "localhost"), **given)
        if wanted.serve is not None:
            if url is not None:
                raise SuiteError(
                    "engine triton: url is for a server that runs already, and serve starts one on "
                    "a port of its own; leave one of them out"
                )
            wanted.server(grpc_port=1)
        elif wanted.environment:
            raise SuiteError(
                "engine triton: environment is for a server that serve starts, and there is no "
                "serve; leave it out"
            )
        if wanted.binary is not None and protocol != "http":
            raise SuiteError(
                f'engine triton: binary is for protocol = "http", but protocol = "{protocol}"; '
                "leave it out"
            )
        return wanted

    def server(self, *, grpc_port: int) -> Server:
        """Return a server that is not started yet.

        Raises:
            SuiteError: `serve` cannot start one.
        """
        words: Any = self.serve
        if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
            words = [word.replace(GRPC_PORT, str(grpc_port)) for word in words]
        return Server(
            words,
            engine="triton",
            model=self.model,
            health=HEALTH,
            start_timeout_s=self.start_timeout_s,
            environment=self.environment,
        )


class Service:
    """A server that has the model, started on entry if need be."""

    def __init__(self, wanted: Wanted) -> None:
        """Reach for nothing yet."""
        self._wanted = wanted
        self._address = wanted.address
        self._server: Server | None = None
        self._bytes = False
        self._hung_up = False
        self._open = ExitStack()
        self._requests = Requests(self._connect)

    def __enter__(self) -> Self:
        """Start the server if need be, and wait until it has the model ready.

        Raises:
            RunError: There is no such server or model, or it is not ready in time.
        """
        with ExitStack() as opening:
            if self._wanted.serve is not None:
                self._start(opening)
            first = self._connect()
            try:
                self._met = meet(
                    first,
                    where=self.where,
                    name=self._wanted.name,
                    timeout_s=self._wanted.start_timeout_s,
                    starting=self._server,
                )
            finally:
                first.close()
            said = self._wanted.binary
            self._bytes = self._met.server.sends_bytes if said is None else said
            self._open = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop a server of our own."""
        self._open.__exit__(kind, error, trace)

    def hang_up(self) -> None:
        """Close all connections; requests under way fail."""
        self._hung_up = True
        self._requests.close()

    @property
    def where(self) -> str:
        """Model and server, for messages."""
        return f"model {self._wanted.name!r} at {self._address}"

    def graph(self, batch_size: int) -> RemoteGraph:
        """Return the model.

        Raises:
            RunError: It does not take batches of this size, or does not compute each answer.
        """
        self._met.model.check(batch_size, self.where)
        return RemoteGraph(
            where=self.where,
            inputs=self._met.model.inputs,
            outputs=self._met.model.outputs,
            requests=self._requests,
            explain=self._explain,
        )

    def describe(self) -> Mapping[str, str]:
        """Return what belongs to the fingerprint."""
        wanted = self._wanted
        facts = {
            **self._met.describe(),
            "served_model": wanted.name,
            "model_version": wanted.version or "chosen by the server",
            "protocol": self._address.protocol,
            "reach": self._address.reach,
        }
        if self._address.protocol == "http":
            facts["arrays"] = "bytes" if self._bytes else "JSON"
        if wanted.serve is not None:
            # Of paths the last part, which names no user.
            words = (PurePath(w).name if w.startswith(("/", "~")) else w for w in wanted.serve)
            facts["serve"] = " ".join(words)
            facts |= {f"environment.{name}": v for name, v in wanted.environment.items()}
            # What a server has loaded that runs already is known to it alone.
            if wanted.model is not None and (found := _sha256(Path(wanted.model))):
                facts["weights_sha256"] = found[:16]
        return facts

    def _start(self, opening: ExitStack) -> None:
        port = free_port()
        self._server = opening.enter_context(self._wanted.server(grpc_port=port))
        url = self._server.url if self._address.protocol == "http" else f"{HOST}:{port}"
        self._address = Address.of(self._address.protocol, url)

    def _connect(self) -> Client:
        wanted = self._wanted
        if self._address.protocol == "grpc":
            from pytest_mlperf.engines.triton.grpc_client import GrpcClient

            return GrpcClient(
                self._address, wanted.name, wanted.version, timeout_s=wanted.request_timeout_s
            )
        from pytest_mlperf.engines.triton.http_client import HttpClient

        return HttpClient(
            self._address,
            wanted.name,
            wanted.version,
            timeout_s=wanted.request_timeout_s,
            binary=self._bytes,
        )

    def _explain(self, error: RequestError) -> RunError:
        """Return the error of a run that a request ends, with counts and what the server said."""
        others = self._requests.under_way
        counts = f"{self._requests.answered:,} requests were answered before" + (
            f", {others:,} more were under way" if others else ""
        )
        what = "the server is gone" if error.lost else "a request failed"
        message = f"{self.where}: {what} ({error}); {counts}"
        if self._server is None:
            return RunError("engine", message)
        try:
            self._server.check(END_S if error.lost and not self._hung_up else 0.0)
        except RunError as ended:
            return RunError("engine", f"{message}; {ended}", ended.log)
        return RunError("engine", f"{message}{self._server.said()}", str(self._server.log))


def _sha256(model: Path) -> str:
    """Return the hex SHA-256 of the model's file, or of all files of its folder; "" without."""
    if not model.is_dir():
        return sha256([model]) if model.is_file() else ""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    names = [f"{path.relative_to(model).as_posix()} {sha256([path])}" for path in files]
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""
