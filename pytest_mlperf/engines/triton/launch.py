"""The server that the engine starts itself: a second port for gRPC, and its program's name."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.serving import HOST, Server

HEALTH = "/v2/health/ready"

GRPC_PORT = "{grpc_port}"


def make_server(
    command: Sequence[str],
    *,
    model: str | None,
    environment: Mapping[str, str],
    start_timeout_s: float,
    grpc_port: int,
) -> Server:
    """Return a server that is not started yet.

    Args:
        command: Program and arguments; {model}, {host}, {port} and {grpc_port} are replaced.
        model: The workload's model.
        environment: Variables that it gets besides this process's own.
        start_timeout_s: Time to become ready.
        grpc_port: For gRPC.

    Raises:
        SuiteError: A value means nothing here.
    """
    words: Any = command
    if isinstance(command, list | tuple) and all(isinstance(word, str) for word in command):
        words = [word.replace(GRPC_PORT, str(grpc_port)) for word in command]
    try:
        return Server(
            words,
            model=model,
            health=HEALTH,
            start_timeout_s=start_timeout_s,
            environment=environment,
        )
    except SuiteError as error:
        raise ours(error) from error


def grpc_address(port: int) -> str:
    """Return where a server of ours answers gRPC."""
    return f"{HOST}:{port}"


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def shown(command: Sequence[str]) -> str:
    """Return a command for the fingerprint; of paths the last part, which names no user."""
    return " ".join(
        PurePath(word).name if word.startswith(("/", "~")) else word for word in command
    )


def ours(error: SuiteError) -> SuiteError:
    """Return the refusal of an option by a module that other engines share."""
    text = str(error)
    for name in ("onnxruntime", "openai"):
        text = text.replace(f"engine {name}:", "engine triton:")
    return SuiteError(text)
