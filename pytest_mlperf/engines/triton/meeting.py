"""The first words with a server: is it ready, and what does it say of itself and of the model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.serving import LONGEST_S, SHORTEST_S, Server
from pytest_mlperf.engines.triton.client import Client, RequestError
from pytest_mlperf.engines.triton.metadata import ModelFacts, ServerFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """What a server said.

    Attributes:
        server: Of itself.
        model: Of the model.
    """

    server: ServerFacts
    model: ModelFacts

    def describe(self) -> Mapping[str, str]:
        """Return what belongs to the fingerprint."""
        return {**self.server.describe(), **self.model.describe()}


def meet(
    client: Client, *, where: str, name: str, timeout_s: float, starting: Server | None
) -> Met:
    """Wait until server and model are ready, then ask for what describes them.

    Args:
        client: The connection.
        where: Model and server, for messages.
        name: Of the model.
        timeout_s: Time to become ready.
        starting: A server of our own: what it says belongs into messages, and a port that it does
            not listen on yet is no error.

    Raises:
        RunError: There is no such server or model, it is not ready in time, or what describes it
            cannot be read.
    """
    try:
        _wait(client, where=where, name=name, timeout_s=timeout_s, starting=starting)
        server = ServerFacts.of(client.server(), where)
        return Met(server=server, model=ModelFacts.of(client.model(), client.config(), where))
    except RequestError as error:
        if starting is not None:
            starting.check()
            raise RunError(
                "engine", f"{where}: {error}{starting.said()}", str(starting.log)
            ) from error
        advice = (
            "start the server, correct url, or let serve start one"
            if error.lost
            else "correct url, or see the server's log"
        )
        raise RunError("engine", f"{where}: {error}; {advice}") from error


def _wait(
    client: Client, *, where: str, name: str, timeout_s: float, starting: Server | None
) -> None:
    """Return when server and model are ready.

    Raises:
        RequestError: The server does not answer.
        RunError: They are not ready in time, or the server has no such model.
    """
    deadline = time.monotonic() + timeout_s
    pause_s, lacks = SHORTEST_S, ""
    while True:
        try:
            lacks = _lacks(client)
        except RequestError as error:
            if starting is None or not error.lost or time.monotonic() > deadline:
                raise
            starting.check()
            lacks = str(error)
        if not lacks:
            return
        if lacks == MODEL and (known := client.names()) and name not in known:
            raise RunError(
                "engine",
                f"{where}: the server has no such model, but {', '.join(known)}; correct "
                "served_model",
            )
        if time.monotonic() + pause_s > deadline:
            said = "" if starting is None else starting.said()
            raise RunError(
                "engine", f"{where}: within start_timeout = {timeout_s:g} s, {lacks}{said}"
            )
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, LONGEST_S)


SERVER, MODEL = "the server was not ready", "the model was not ready, or is not there"


def _lacks(client: Client) -> str:
    """Return what is not ready; "" if all is."""
    if client.model_ready():
        return ""
    # A server says that it is not ready while any of its models is not.
    return MODEL if client.server_ready() else SERVER
