"""A model on a server as tasks run it: a batch is one request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.tasks.graph import NUMPY, Graph
from pytest_mlperf.engines.tasks.inputs import fits
from pytest_mlperf.engines.triton.client import Client, RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Requests:
    """Clients, one for each thread that asks, and a count of what was asked.

    Attributes:
        answered: Requests that had an answer.
        under_way: Requests that wait for theirs.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        """Connect when a thread first asks."""
        self.answered = 0
        self.under_way = 0
        self._connect = connect
        self._clients: list[Client] = []
        self._own = threading.local()
        self._lock = threading.Lock()
        self._version = ""

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> Sequence[NDArray[Any]]:
        """Return outputs; callable from several threads.

        Raises:
            RequestError: There is no answer, or another version of the model gave it.
        """
        client = self.client()
        with self._lock:
            self.under_way += 1
        try:
            arrays, version = client.infer(inputs, outputs)
        finally:
            with self._lock:
                self.under_way -= 1
        with self._lock:
            known, self._version = self._version, self._version or version
            self.answered += known in ("", version)
        if known not in ("", version):
            raise RequestError(
                f"version {version!r} of the model answered, after version {known!r} had; name "
                "one by model_version, and change no model during a run"
            )
        return arrays

    def client(self) -> Client:
        """Return this thread's client."""
        found: Client | None = getattr(self._own, "client", None)
        if found is None:
            found = self._own.client = self._connect()
            with self._lock:
                self._clients.append(found)
        return found

    def close(self) -> None:
        """Close every client; requests under way fail."""
        for client in self._clients:
            client.close()


@dataclass(frozen=True, kw_only=True)
class RemoteGraph(Graph):
    """A model on a server.

    Attributes:
        requests: What asks the server.
        explain: Makes the error of a request the error of the run.
    """

    requests: Requests
    explain: Callable[[RequestError], RunError]

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]
    ) -> Sequence[NDArray[Any]]:
        """Return these outputs for a batch of inputs by name.

        Raises:
            RunError: The server gave none, or something else than it describes.
        """
        try:
            found = self.requests.infer(feed, outputs)
        except RequestError as error:
            raise self.explain(error) from error
        known = {each.name: each for each in self.outputs}
        for name, array in zip(outputs, found, strict=True):
            dtype = NUMPY.get(known[name].type, array.dtype)
            if array.dtype != dtype or not fits(array.shape, known[name].shape):
                raise self.refuse(
                    f"output {name!r} is {dtype} of shape {known[name].shape} by the server's "
                    f"description, but an answer has {array.dtype} of shape {array.shape}"
                )
        return found
