"""What a suite may say to engine triton."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines.triton._clients import PORTS, SECURE, ServiceAddress
from pytest_mlperf.core.errors import SuiteError
from tests.adapters.engines.triton.harness import engine, scripted
from tests.refusals import unrefused

SERVE = scripted()


NO_ADDRESS = "is not an address for protocol ="

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"precision": "fast"}, "^engine triton: precision = 'fast' is not one of fp64, fp32"),
    ({"served_model": ""}, "served_model = '' is not the name of a model on the server"),
    ({"concurrency": 0}, "concurrency = 0 is not a number of requests, at least 1"),
    ({"request_timeout": 0}, "request_timeout = 0 is not a number of seconds above 0"),
    ({"start_timeout": -1.0}, "start_timeout = -1.0 is not a number of seconds above 0"),
    ({"protocol": "rest"}, "protocol = 'rest' is not one of http, grpc"),
    ({"url": "a host"}, f"url = 'a host' {NO_ADDRESS} \"http\"; e.g."),
    ({"url": "a..b"}, f"url = 'a..b' {NO_ADDRESS} \"http\""),
    ({"url": "grpc://host"}, f"url = 'grpc://host' {NO_ADDRESS} \"http\""),
    ({"url": "host/path", "protocol": "grpc"}, f"url = 'host/path' {NO_ADDRESS} \"grpc\""),
    ({"url": "host:99999"}, "url = 'host:99999' has port 99999; ports are from 1"),
    ({"url": "host", "serve": SERVE}, "url is for a server that runs already"),
    ({"environment": {"A": "1"}}, "environment is for a server that serve starts"),
    ({"binary": True, "protocol": "grpc"}, 'is for protocol = "http", but protocol = "grpc"'),
    ({"serve": ["tritonserver"]}, "serve does not give the server its port"),
    ({"serve": [*SERVE, "{model}"]}, "serve has {model}, but the suite names no model"),
    ({"serve": [*SERVE, "{gpu}"]}, "serve has {gpu}; known placeholders are"),
]


def test_a_wrong_option_is_refused_when_the_engine_is_built() -> None:
    assert unrefused(lambda options: engine([], **options), SuiteError, REFUSED) == []


def test_an_address_is_completed() -> None:
    for protocol, url, whole, reach in (
        ("http", "localhost", "http://localhost:8000", "loopback"),
        ("grpc", "localhost", "grpc://localhost:8001", "loopback"),
        ("http", "https://models.example/triton/", "https://models.example:8000/triton", "network"),
        ("http", "127.0.0.1:80", "http://127.0.0.1:80", "loopback"),
        ("grpc", "grpcs://[::1]:443", "grpcs://[::1]:443", "loopback"),
    ):
        address = ServiceAddress.of(protocol, url)
        assert (str(address), address.reach) == (whole, reach)


HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)


@given(st.sampled_from(sorted(PORTS)), st.booleans(), HOSTS, st.integers(1, 65535))
def test_an_address_survives_a_round_trip(
    protocol: str, secure: bool, host: str, port: int
) -> None:
    scheme = SECURE[protocol] if secure else protocol

    address = ServiceAddress.of(protocol, f"{scheme}://{host}:{port}")

    assert str(address) == f"{scheme}://{host}:{port}"
    assert ServiceAddress.of(protocol, str(address)) == address
    assert (f"{address.host}:{address.port}", address.secure) == (f"{host}:{port}", secure)
