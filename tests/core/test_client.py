"""A latency that the measuring process took itself is no latency of the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.contention import INVALID_SHARE, LEAST_S, NOTED_SHARE, client_share
from pytest_mlperf.core.reason import Key

BUSY = {"issue_p50": 0.0, "loop_p50": 0.001, "issue_p99": 0.006, "loop_p99": 0.65}
"""A machine where everything else ran too."""

QUIET = {"issue_p50": 0.0, "loop_p50": 0.0, "issue_p99": 0.0002, "loop_p99": 0.0004}


def test_a_busy_client_is_not_passed_off_as_a_slow_server() -> None:
    """712 ms where the server's own was 56 ms."""
    reason, note = client_share({"ttft_p99": 0.712}, ["ttft_p99"], BUSY)

    assert note is None
    assert reason is not None
    assert reason.key is Key.CLIENT_LATE
    assert reason.text == (
        "the client, not the server, was measured: p99 TTFT is 712 ms, of which this process took "
        "up to 656 ms: its requests began 6 ms late and its event loop was 650 ms late (p99); give "
        "it processor cores that nobody else uses, or measure from another machine"
    )


def test_what_decides_nothing_and_what_is_small_is_let_pass() -> None:
    for metrics, gated, client in (
        ({"ttft_p99": 0.712}, "ttft_p99", QUIET),
        ({"ttft_p99": 0.712}, "ttft_p99", {}),
        ({"ttft_p99": 8.0}, "ttft_p99", BUSY),
        ({"ttft_p50": 0.1}, "ttft_p50", BUSY),  # half of all were seen at once
        ({"ttft_p99": 0.001}, "ttft_p99", QUIET),  # too little to mean anything
        ({"ttft_p99": 0.712, "throughput": 5.0}, "throughput", BUSY),
        ({"throughput": 5.0}, "ttft_p99", BUSY),
        ({"tpot_p99": 0.01}, "tpot_p99", BUSY),  # late at both of its ends
    ):
        assert client_share(metrics, [gated], client) == (None, None)


def test_a_share_between_is_noted() -> None:
    reason, note = client_share({"latency_p99": 4.0}, ["latency_p99"], BUSY)

    assert reason is None
    assert (note or "").startswith("p99 latency is 4 s, of which this process took up to 656 ms")


@given(st.floats(1e-4, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
def test_it_is_judged_by_the_share_alone(latency_s: float, issue_s: float, loop_s: float) -> None:
    reason, note = client_share(
        {"latency_p99": latency_s},
        ["latency_p99"],
        {"issue_p99": issue_s, "loop_p99": loop_s},
    )
    late_s = issue_s + loop_s
    matters = late_s >= LEAST_S

    assert (reason is not None) is (matters and late_s / latency_s > INVALID_SHARE)
    assert (note is not None) is (matters and NOTED_SHARE < late_s / latency_s <= INVALID_SHARE)
