"""The server that a suite wants, and what is open to it while an engine is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.engines.triton.address import Address
from pytest_mlperf.engines.triton.client import Client, RequestError
from pytest_mlperf.engines.triton.launch import free_port, grpc_address, make_server, shown
from pytest_mlperf.engines.triton.meeting import meet
from pytest_mlperf.engines.triton.remote import RemoteGraph, Requests

if TYPE_CHECKING:
    from pytest_mlperf.engines.serving import Server

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
        """Check the options of a suite.

        Raises:
            SuiteError: One means nothing, or contradicts another one.
        """
        wanted = cls(address=Address.of(protocol, url or "localhost"), **given)
        rules = (
            ("served_model", wanted.name, bool(wanted.name), "the name of a model on the server"),
            ("request_timeout", wanted.request_timeout_s, wanted.request_timeout_s > 0, SECONDS),
            ("start_timeout", wanted.start_timeout_s, wanted.start_timeout_s > 0, SECONDS),
        )
        for option, value, valid, expected in rules:
            if not valid:
                raise SuiteError(f"engine triton: {option} = {value!r} is not {expected}")
        if wanted.serve is not None:
            if url is not None:
                raise SuiteError(
                    "engine triton: url is for a server that runs already, and serve starts one on "
                    "a port of its own; leave one of them out"
                )
            make_server(wanted.serve, **wanted.serving, grpc_port=1)
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

    @property
    def serving(self) -> dict[str, Any]:
        """What is the same whenever the server is started."""
        return {
            "model": self.model,
            "environment": self.environment,
            "start_timeout_s": self.start_timeout_s,
        }


SECONDS = "a number of seconds above 0"


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
                self._start(self._wanted.serve, opening)
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
            path=Path(self._wanted.name),
            inputs=self._met.model.inputs,
            outputs=self._met.model.outputs,
            session=self._requests,
            where=self.where,
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
            facts["serve"] = shown(wanted.serve)
            facts |= {f"environment.{name}": v for name, v in wanted.environment.items()}
            # What a server has loaded that runs already is known to it alone.
            if wanted.model is not None and (found := _sha256(Path(wanted.model))):
                facts["weights_sha256"] = found[:16]
        return facts

    def _start(self, serve: Sequence[str], opening: ExitStack) -> None:
        port = free_port()
        server = make_server(serve, **self._wanted.serving, grpc_port=port)
        self._server = opening.enter_context(server)
        url = server.url if self._address.protocol == "http" else grpc_address(port)
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
        return _digest(model) if model.is_file() else ""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    names = [f"{path.relative_to(model).as_posix()} {_digest(path)}" for path in files]
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
