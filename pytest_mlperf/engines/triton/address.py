"""Where a KServe v2 server answers, as a suite writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from pytest_mlperf.core.errors import SuiteError

PORTS = {"http": 8000, "grpc": 8001}
"""Protocols, and the ports that Triton answers them at unless it is told otherwise."""

SECURE = {"http": "https", "grpc": "grpcs"}

LOCAL = re.compile(r"localhost|127\.\d+\.\d+\.\d+|\[::1\]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where a server answers one protocol.

    Attributes:
        protocol: A key of `PORTS`.
        host: Name or number; an IPv6 number in brackets.
        port: TCP port.
        path: What stands before /v2, without a slash at its end; "" for gRPC.
        secure: Whether the connection is encrypted.
    """

    protocol: str
    host: str
    port: int
    path: str
    secure: bool

    @classmethod
    def of(cls, protocol: str, url: str) -> Self:
        """Read "HOST:PORT", or a URL with the protocol's scheme.

        Raises:
            SuiteError: It is neither, or there is no such protocol.
        """
        if protocol not in PORTS:
            raise SuiteError(
                f"engine triton: protocol = {protocol!r} is not one of {', '.join(PORTS)}"
            )
        found = re.fullmatch(
            r"(?:(?P<scheme>\w+)://)?(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?"
            r"(?P<path>(?:/[\w.~%-]+)*)/?",
            url,
        )
        schemes = (None, protocol, SECURE[protocol])
        if (
            found is None
            or found["scheme"] not in schemes
            or (found["path"] and protocol != "http")
        ):
            raise SuiteError(
                f'engine triton: url = {url!r} is no address for protocol = "{protocol}"; e.g. '
                f'"localhost:{PORTS[protocol]}" or "{SECURE[protocol]}://models.example:443"'
            )
        port = int(found["port"] or PORTS[protocol])
        if not 0 < port < 1 << 16:
            raise SuiteError(f"engine triton: url = {url!r} has a port that does not exist")
        return cls(
            protocol=protocol,
            host=found["host"],
            port=port,
            path=found["path"],
            secure=found["scheme"] == SECURE[protocol],
        )

    def __str__(self) -> str:
        """Return it as a URL."""
        scheme = SECURE[self.protocol] if self.secure else self.protocol
        return f"{scheme}://{self.host}:{self.port}{self.path}"

    @property
    def netloc(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    @property
    def reach(self) -> str:
        """Return "loopback" for a server on this machine by its address, else "network"."""
        return "loopback" if LOCAL.fullmatch(self.host) else "network"
