"""Whether a server listens, asked by opening a connection and closing it again."""

from __future__ import annotations

import socket

from pytest_mlperf.core.errors import RunError

LIMIT_S = 5.0


def require_listening(engine: str, host: str, port: int) -> None:
    """Open a connection; nothing is sent.

    Args:
        engine: For messages.
        host: Name or address.
        port: Of the server.

    Raises:
        RunError: Nobody listens there.
    """
    try:
        socket.create_connection((host, port), LIMIT_S).close()
    except OSError as error:
        raise RunError(
            "engine",
            f"engine {engine}: no server listens at {host}:{port} ({error.strerror or error}); "
            "start it, correct url, or let serve start one",
        ) from error
