"""How much of a run's speed the machine's load explains, or of a latency the client itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.contention import (
    MIN_LOST_SECONDS,
    MIN_WINDOW_SECONDS,
    NOTED_SHARE,
    Contention,
    busiest,
    busy_names,
    client_note,
    core_users,
    late_share,
    load_seen,
    lost_share,
    tolerated_load_share,
)
from pytest_mlperf.core.notes import Note
from pytest_mlperf.reports.sentences import sentence


def seen(**fields: Any) -> Contention:
    usual: dict[str, Any] = {"window_s": 10.0, "cores": 2, "own_s": 10.0}
    return Contention(**{**usual, **fields})


QUIET = {"foreign_s": 0.2, "waited_s": 0.0, "stolen_s": 0.0, "throttled_s": 0.0}


def test_what_the_load_explains_and_half_of_the_limit_is_left_for_the_build() -> None:
    cases: list[tuple[dict[str, Any], bool, float | None]] = [
        # Quiet: others used 1 % of two cores, and nothing was waited for.
        (QUIET, False, 0.0),
        (QUIET, True, 0.01),
        # Four threads of its own on two cores wait for each other half of the time.
        ({**QUIET, "own_s": 19.8, "waited_s": 20.0}, False, 0.02),
        # One thread, two neighbours that compute: a third of the time it waited.
        ({**QUIET, "own_s": 6.6, "foreign_s": 13.4, "waited_s": 3.4}, False, 0.34),
        ({**QUIET, "own_s": 6.6, "foreign_s": 13.4, "waited_s": 3.4}, True, 0.632),
        # A neighbour on the other core: nobody waits, and what cores share is shared.
        ({**QUIET, "foreign_s": 10.0}, True, 0.5),
        ({**QUIET, "foreign_s": 10.0}, False, 0.0),
        # The same beside an engine that sleeps, and on a large machine.
        ({**QUIET, "own_s": 0.2, "foreign_s": 10.0}, True, 0.01),
        ({**QUIET, "cores": 64, "foreign_s": 10.0}, True, 0.016),
        # What a hypervisor and a quota took counts whole.
        ({**QUIET, "stolen_s": 1.0, "throttled_s": 2.0}, False, 0.3),
        ({**QUIET, "throttled_s": 200.0}, False, 1.0),
        # Memory: as long as it was short, and no longer than the run's own faults can take.
        ({**QUIET, "memory_some_s": 5.0, "faults": 0}, False, 0.0),
        ({**QUIET, "memory_some_s": 5.0, "faults": 100}, False, 0.1),
        ({**QUIET, "memory_some_s": 0.5, "faults": 10_000}, False, 0.05),
        # Without run-queue waits the kernel's pressure stands for them, up to what others used.
        ({"foreign_s": 3.0, "waited_s": None, "pressure_s": 8.0}, False, 0.3),
        ({"foreign_s": 3.0, "waited_s": None, "pressure_s": 1.0}, False, 0.1),
        # Without others' use: cores that the run did not use itself may have been theirs.
        ({"waited_s": 4.0}, False, 0.4),
        ({"waited_s": 4.0, "own_s": 20.0}, False, 0.0),
        # Nothing is known, or for too short a time.
        ({"stolen_s": 1.0}, False, None),
        ({**QUIET, "window_s": 0.4}, False, None),
    ]
    for fields, on_cpu, share in cases:
        share_lost = lost_share(seen(**fields), on_cpu=on_cpu)
        assert share_lost == (None if share is None else pytest.approx(share, abs=0.001)), fields

    # Few cores can use up the memory's bandwidth: before a drop is claimed.
    rows: list[tuple[float, int, bool, float]] = [
        (1.0, 64, True, 0.002),  # nobody uses 5 % of the cores
        (64.0, 64, True, 0.4),
        (64.0, 64, False, 0.0),  # an accelerator has memory of its own
        (10.0, 2, True, 0.5),  # the others' part of the cores explains more
    ]
    for foreign_s, cores, on_cpu, share in rows:
        load = seen(**{**QUIET, "foreign_s": foreign_s, "cores": cores})
        assert lost_share(load, on_cpu=on_cpu, memory=0.4) == pytest.approx(share, abs=0.001)

    limits: list[dict[str, float]] = [
        *({"throughput": 0.4}, {"throughput": 0.4, "latency_p50": 0.6}, {"latency_p99": 2.0}),
        *({"throughput": 0.03}, {}),
    ]

    assert [tolerated_load_share(limit) for limit in limits] == pytest.approx(
        [0.2, 0.2, 1.0, 0.05, 0.05]
    )


seconds = st.one_of(st.none(), st.floats(0, 1e4))


@given(
    st.builds(
        Contention,
        window_s=st.floats(0, 1e4),
        cores=st.integers(0, 512),
        own_s=seconds,
        foreign_s=seconds,
        waited_s=seconds,
        stolen_s=seconds,
        throttled_s=seconds,
        pressure_s=seconds,
        memory_some_s=seconds,
        faults=st.one_of(st.none(), st.integers(0, 10**6)),
    ),
    st.booleans(),
)
def test_a_share_is_a_share_and_grows_with_the_load(contention: Contention, on_cpu: bool) -> None:
    """Whatever cannot be read: it is from 0 to 1, or not known; more waits never explain less."""
    share = lost_share(contention, on_cpu=on_cpu)

    load = sentence(load_seen(replace(contention, window_s=max(contention.window_s, 1e-3))))
    assert "None" not in load
    assert not load.startswith("load_seen")
    if share is None:
        assert contention.window_s < MIN_WINDOW_SECONDS or (
            contention.waited_s is None and contention.foreign_s is None
        )
        return
    assert 0 <= share <= 1
    if contention.waited_s is not None:
        more = replace(contention, waited_s=contention.waited_s + 1)
        assert (lost_share(more, on_cpu=on_cpu) or 0.0) >= share


BUSY = seen(
    own_s=6.6,
    foreign_s=13.4,
    waited_s=3.4,
    memory_some_s=0.4,
    faults=1200,
    stolen_s=0.3,
    others={"python": 0.4, "cc1plus": 0.9},
    share=0.34,
)

HOSTILE = "\x1b[2J::error::"
LOAD: dict[str, Any] = {
    "used": 1.34,
    "cores": 2,
    "names": "cc1plus 0.9, python 0.4",
    "waited_s": 3.4,
    "window_s": 10.0,
    "stolen_s": 0.3,
    "throttled_s": None,
    "memory_some_s": 0.4,
    "faults": 1200,
}


def test_a_busy_machine_is_reported_with_its_figures() -> None:
    """Names are printed without control characters."""
    quiet, names = seen(**QUIET, share=0.01), busy_names(seen(others={HOSTILE: 0.9}))
    load = Note.of("load_seen", **LOAD)

    assert busiest([]) is busiest([None, quiet]) is None
    assert busiest([quiet, BUSY, None]) == Note.of("not_idle", share=BUSY.share, of=3, load=load)
    assert not [text for text in ("\x1b", "::error") if text in names]
    assert load_seen(seen(foreign_s=1e-13)).values["used"] == 0


CLIENT_BUSY = {"issue_p50": 0.0, "loop_p50": 0.001, "issue_p99": 0.006, "loop_p99": 0.65}
"""A machine where everything else ran too."""

CLIENT_QUIET = {"issue_p50": 0.0, "loop_p50": 0.0, "issue_p99": 0.0002, "loop_p99": 0.0004}


def test_the_users_of_the_cores_are_named_if_too_few_requests_were_in_flight() -> None:
    """A server at a url of this machine counts as the run's own; so its client is taken off."""
    server = {"serves": True, "own_s": 19.0, "foreign_s": 0.5}
    busy = {"serves": True, "own_s": 4.0, "foreign_s": 15.0, "others": {"make": 1.4}}
    unknown = Note.of("cores_unknown")

    def users(server: float, client: float, others: float, **values: Any) -> Note:
        usual = {"cores": 2, "names": "", "serves": True, "idle": False}
        used = {"own": server, "client": client, "others": others}
        return Note.of("core_users", **used, **{**usual, **values})

    for fields, client, note in (
        (server, 0.2, users(1.7, 0.2, 0.05)),
        (busy, 0.2, users(0.2, 0.2, 1.5, names="make 1.4")),
        ({"serves": True, "own_s": 10.1, "foreign_s": 0.0}, 0.98, users(0.03, 0.98, 0.0)),
        ({"own_s": 3.0, "foreign_s": 0.0}, 0.1, users(0.2, 0.1, 0.0, serves=None, idle=True)),
        (
            {"serves": False, "own_s": 1.0, "foreign_s": 18.0},
            0.1,
            users(0.0, 0.1, 1.8, serves=False),
        ),
        ({"own_s": None, "foreign_s": 18.0}, 0.1, unknown),
        ({"own_s": 0.0, "window_s": 0.0}, 0.0, unknown),
    ):
        noted = core_users(seen(**fields), client)
        assert noted.key == note.key
        assert noted.values == pytest.approx(note.values) if note.values else not noted.values
    assert core_users(None, 0.1) == unknown


def test_a_busy_client_is_not_passed_off_as_a_slow_server() -> None:
    """712 ms although the server's own was 56 ms; undecided metrics and small shares pass."""
    assert client_note({"ttft_p99": 0.712}, ["ttft_p99"], CLIENT_BUSY) == Note.of(
        "client_share", metric="ttft_p99", value=0.712, issue_s=0.006, loop_s=0.65
    )
    at_points = {"ttft_p99@4": 0.712, "ttft_p99@8": 0.712}
    for late in (CLIENT_BUSY, {**CLIENT_QUIET, "loop_p99@8": 0.65}):
        assert late_share("ttft_p99@8", 0.712, late) > 0.9
        assert client_note(at_points, at_points, late)

    for metrics, gated, client in (
        ({"ttft_p99": 0.712}, "ttft_p99", CLIENT_QUIET),
        ({"ttft_p99": 0.712}, "ttft_p99", {}),
        ({"ttft_p99": 8.0}, "ttft_p99", CLIENT_BUSY),
        ({"ttft_p50": 0.1}, "ttft_p50", CLIENT_BUSY),  # half of all were seen at once
        ({"ttft_p99": 0.001}, "ttft_p99", CLIENT_QUIET),  # too little to mean anything
        ({"ttft_p99": 0.712, "throughput": 5.0}, "throughput", CLIENT_BUSY),
        ({"throughput": 5.0}, "ttft_p99", CLIENT_BUSY),
        ({"tpot_p99": 0.01}, "tpot_p99", CLIENT_BUSY),  # late at both of its ends
    ):
        assert client_note(metrics, [gated], client) is None


@given(st.floats(1e-4, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
def test_it_is_judged_by_the_share_alone(latency_s: float, issue_s: float, loop_s: float) -> None:
    late = {"issue_p99": issue_s, "loop_p99": loop_s}
    note = client_note({"latency_p99": latency_s}, ["latency_p99"], late)
    matters = issue_s + loop_s >= MIN_LOST_SECONDS and (issue_s + loop_s) / latency_s > NOTED_SHARE
    assert (note is not None) is matters
