"""Test the conditions that make a run on a GPU invalid, or its energy, or that are only noted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_mlperf.core.energy.readings import Reading
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Key
from pytest_mlperf.hardware.nvml_quantities import REASONS
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.figures import Findings
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.doubts import THROTTLING_REASONS, rejection_reasons

BEGIN_S, END_S, WARM_S = 10.0, 110.0, 5.0
FACTS: dict[str, Any] = {
    "identity": {
        "ecc": [1, 1],
        "remapped_rows_pending": False,
        "max_pcie_generation": 5,
        "max_pcie_width": 16,
        "slowdown_c": 92,
        "limit_w": 700.0,
    },
    "utilization_percent": 0,
    "shared": False,
    "instances": 0,
    "processes": [],
    "memory_used": 5 * 10**8,
}


def state(time_s: float, **changes: Any) -> dict[str, Any]:
    plain = {
        "pcie_generation": 5,
        "pcie_width": 16,
        "processes": [[1, 10**9]],
        "ecc_uncorrected": 0,
        "ecc_corrected": 3,
        "pcie_replays": 9,
    }
    return {"time": time_s, **plain, **changes}


def log(mask: int = 0, seconds: float = 0.0, last: Any = None, **facts: Any) -> GpuLog:
    """Return a clean log of 120 s, with reasons set for `seconds` from 50 s on."""
    moments = [i / 10 for i in range(1200)]
    return GpuLog(
        uuid="GPU-0",
        facts={**FACTS, **facts},
        trace=[Reading(time_s=t, value=500.0) for t in moments],
        reasons=[(t, mask if 50 <= t < 50 + seconds - 1e-9 else 0) for t in moments],
        states=[state(0.0), state(8.0), state(60.0), state(119.0, **(last or {}))],
    )


def doubts_of(gpu: GpuLog) -> Findings:
    return rejection_reasons(gpu, BEGIN_S, END_S, warm_s=WARM_S)


def texts(gpu_doubts: Findings) -> tuple[str, ...]:
    return tuple(sentence(reason.text) for reason in gpu_doubts.invalid)


def notes(gpu_doubts: Findings) -> tuple[str, ...]:
    return tuple(sentence(sign.note) for sign in gpu_doubts.signs)


def happened(**changes: Any) -> GpuLog:
    """A log in whose window this was read once."""
    plain = log()
    return replace(plain, states=[*plain.states[:2], state(30.0), state(60.0, **changes), *LAST])


LAST = log().states[3:]


def gpu_with(**changes: Any) -> GpuLog:
    """Return a log of a GPU with other properties."""
    return log(identity={**FACTS["identity"], **changes})


def test_each_event_reason_has_its_verdict_also_if_only_the_gpu_counted_it() -> None:
    for seconds, (bit, name) in itertools.product((0.9, 1.1, 21.0), REASONS.items()):
        gpu_doubts = doubts_of(log(bit, seconds))
        if name in THROTTLING_REASONS:
            assert bool(gpu_doubts.invalid) == (seconds > 1), name
            assert bool(notes(gpu_doubts)) == (seconds < 1), name
        elif name == "gpu_idle":
            assert (gpu_doubts.invalid, bool(notes(gpu_doubts))) == ((), seconds > 20), name
        else:
            (sign,) = gpu_doubts.signs
            assert gpu_doubts.invalid == (), name
            assert sign.text == Note.of("clock_event", event=name)
    both = doubts_of(log(0x4 | 0x20, 5.0))
    assert len(both.invalid) == len(notes(both)) == 1

    for name, coarse, invalid in (
        ("hw_thermal_slowdown", False, True),
        ("hw_power_brake_slowdown", False, True),
        ("thermal", True, True),
        ("sw_power_cap", False, False),
    ):
        names = {name} if coarse else {name, "sw_thermal_slowdown", "hw_thermal_slowdown"}
        counts = [dict.fromkeys(names, 0), {**dict.fromkeys(names, 0), name: 3_000_000_000}]
        states = [state(8.0, throttle_ns=counts[0]), state(112.0, throttle_ns=counts[1])]
        gpu_doubts = doubts_of(replace(log(), states=states))
        assert (bool(gpu_doubts.invalid), bool(notes(gpu_doubts))) == (invalid, not invalid), name


WAITS = "a changed ECC mode needs a reboot"
REMAPS = "remapped memory rows need a reset of the GPU"
HEAT = "heat (hardware slowdown) reduced the clocks for 2.00 s, 2.0% of the run"
UNLISTED = "3.0 GiB were in use before the engine was loaded, but no process is listed"


def test_signs_in_a_log_are_invalid_or_noted_or_neither() -> None:
    """Errors that are older than the run, and links of a GPU that works alone, are neither."""
    warm = replace(log(identity={}), states=[state(60.0, temperature_c=90)])
    invalid: list[tuple[GpuLog, str]] = [
        (log(0x40, 2.0), HEAT),
        (log(last={"ecc_uncorrected": 2}), "2 uncorrected memory errors (ECC) during the run"),
        (log(utilization_percent=35), "35 % busy before the engine was loaded"),
    ]
    noted: list[tuple[GpuLog, str]] = [
        (
            log(0x800, 2.0),
            "the driver limits the clocks (reason unknown 0x800): 2.00 s, 2.0% of the run",
        ),
        (log(last={"ecc_corrected": 7}), "4 corrected memory errors (ECC) during the run"),
        (log(last={"pcie_replays": 12}), "3 replays on the PCIe link during the run"),
        (log(memory_used=3 * 2**30), UNLISTED),
        (log(memory_used=3 * 2**30, ways={"memory_used": "nvmlDeviceGetMemoryInfo"}), UNLISTED),
        (gpu_with(ecc=[1, 0]), WAITS),
        (gpu_with(remapped_rows_pending=True), REMAPS),
        (gpu_with(max_pcie_width=32), "the PCIe link ran at x16, not x32"),
        (gpu_with(max_pcie_generation=6), "the PCIe link ran at generation 5, not generation 6"),
        (happened(temperature_c=95), "reached 95 °C; the GPU slows down at 92 °C"),
        (warm, "reached 90 °C"),
        (happened(pcie_width=8), "the PCIe link fell from x16 to x8 during the run"),
        (happened(xids=[94, 13]), "the driver reported XID 94, 13 during the run: see dmesg"),
    ]
    clean = [
        log(),
        replace(log(), states=[state(20.0, pcie_generation=1), state(60.0)]),
        happened(temperature_c=88),
        happened(xids=[]),
        happened(limit_w=702.0),
        log(memory_used=2**31, ways={"memory_used": "nvmlDeviceGetMemoryInfo"}),
        happened(nvlinks={"0": False, "1": True}),
    ]

    cases: list[tuple[GpuLog, tuple[str, ...], tuple[str, ...]]] = []
    cases += [(gpu, (text,), ()) for gpu, text in invalid]
    cases += [(gpu, (), (text,)) for gpu, text in noted]
    found_of = [(gpu, doubts_of(gpu)) for gpu, *_ in cases]
    assert [(gpu, texts(x), notes(x)) for gpu, x in found_of] == cases
    assert {x.energy_unknown for _, x in found_of} == {None}
    assert [doubts_of(gpu) for gpu in clean] == [Findings()] * len(clean)


def test_processes_of_others_are_invalid() -> None:
    """A GPU that is shared or cannot be read has no energy and is not blamed."""
    other_before = log(processes=[[42, 2 * 2**30], [43, None]])
    meanwhile = log(last={"processes": [[1, 10**9], [666, 2**30]]})
    assert texts(doubts_of(other_before)) == (
        "in use before the engine was loaded: process 42 (2.0 GiB), process 43. End them",
    )
    assert texts(doubts_of(meanwhile)) == (
        "used by others during the run: process 666 (1.0 GiB). End them",
    )

    unseen = "this user may not see which MIG instances share this GPU and its energy"
    for gpu, energy in (
        (log(shared=True, instances=3), "3 MIG instances share this GPU and its energy"),
        (log(shared=None, instances=None), unseen),
        (log(shared=False, instances=1), None),
        (GpuLog(uuid="GPU-0", unavailable="no driver"), "no driver"),
    ):
        assert doubts_of(gpu) == Findings(energy_unknown=energy)


ALL_UP = {str(link): True for link in range(18)}


def linked(
    at_start: dict[str, Any], after: dict[str, Any], product: str = "NVIDIA H200"
) -> Findings:
    """Return the doubts about NVLinks that were read before and after the window."""
    gpu = log(identity={**FACTS["identity"], "name": product})
    states = [state(8.0, **at_start), state(60.0, **at_start), state(112.0, **after)]
    return rejection_reasons(
        replace(gpu, states=states), BEGIN_S, END_S, warm_s=WARM_S, linked=True
    )


DEGRADED = "NVSwitch is unhealthy: its bandwidth is degraded"
ILL = "NVSwitch failed during the run: a route is being recovered, a route is unhealthy"
TRAINED = "NVLink was retrained and carried no data meanwhile: 1 on link 3"
MENDED = "NVLink errors during the run, which were corrected: checksum errors 12 on link 7, "
ERRORS = {"crc": {"7": 15, "9": 1}, "replay": {"7": 2}}


def test_links_and_switches_that_fail_in_the_run_are_invalid_and_other_faults_noted() -> None:
    cases: list[tuple[str, Any, Any, str, str]] = [
        ("nvlink_errors", {}, {}, "", ""),
        ("nvlink_errors", {"crc": {"7": 3}}, {"crc": {"7": 3}}, "", ""),
        (
            "nvlink_errors",
            {"crc": {"7": 3}},
            ERRORS,
            "",
            f"{MENDED}1 on link 9; replays 2 on link 7",
        ),
        ("nvlink_errors", {}, {"recovery": {"3": 1}}, TRAINED, ""),
        ("nvlinks", ALL_UP, {**ALL_UP, "5": False}, "NVLink 5 went down during the run", ""),
        ("fabric_health", 0b10101010, 0b10101010, "", ""),
        ("fabric_health", 0, 0, "", ""),
        ("fabric_health", None, None, "", ""),
        ("fabric_health", 0b10101001, 0b10101001, "", DEGRADED),
        ("fabric_health", 0b10101010, 0b10010110, ILL, ""),
        ("fabric_health", 0b10101001, 0b10101010, "", DEGRADED),
    ]
    for name, at_start, after, invalid, note in cases:
        gpu_doubts = linked({name: at_start}, {name: after})
        assert (texts(gpu_doubts), notes(gpu_doubts)) == (
            (invalid,) * bool(invalid),
            (note,) * bool(note),
        )
        assert name != "nvlinks" or gpu_doubts.invalid[0].key is Key.NVLINK_DOWN


def test_links_that_are_down_are_named_and_a_power_limit_of_another_key_is_invalid() -> None:
    """A card for PCIe whose links are all down lacks none; one of a system that has them does."""
    cases: list[tuple[dict[str, bool] | None, str, str]] = [
        (ALL_UP, "NVIDIA H200", ""),
        ({**ALL_UP, "3": False, "11": False}, "NVIDIA H200", "16 of 18 NVLinks up; down: 3, 11"),
        (dict.fromkeys(ALL_UP, False), "NVIDIA H200", "0 of 18 NVLinks up"),
        ({"0": True, "1": True}, "NVIDIA A100-SXM4-80GB", "2 of 12 NVLinks up"),
        (dict.fromkeys(ALL_UP, False), "NVIDIA H100 PCIe", ""),
        ({"0": True, "1": False}, "NVIDIA H100 NVL", "1 of 2 NVLinks up; down: 1"),
        (None, "NVIDIA H200", ""),
    ]
    for links, product, note in cases:
        gpu_doubts = linked({"nvlinks": links}, {"nvlinks": links}, product)
        assert gpu_doubts == Findings(signs=gpu_doubts.signs)
        assert notes(gpu_doubts) == (note,) * bool(note)

    limits: list[tuple[dict[str, float], float | None, str]] = [
        ({"limit_w": 500.0}, None, "700 to 500"),
        ({}, 500, "500 to 700"),
        ({}, 700, ""),
        ({"limit_w": 697.0}, 700, ""),
    ]
    for later, expected, watts in limits:
        gpu = log(last=later)
        invalid = rejection_reasons(gpu, BEGIN_S, END_S, warm_s=WARM_S, limit_w=expected).invalid
        assert [why.key for why in invalid] == [Key.POWER_LIMIT_CHANGED] * bool(watts)
        assert all(f"changed from {watts} W in this" in sentence(why.text) for why in invalid)


QUIET: dict[str, Any] = {"processes": [], "utilization_percent": 0, "memory_used": 5 * 10**8}


def idle(watts: float = 500.0, **changes: Any) -> GpuLog:
    """Return a log of a GPU that is idle but for the changes, in its window alone."""
    plain = log()
    trace = [
        replace(r, value=watts if BEGIN_S <= r.time_s <= END_S else 500.0) for r in plain.trace
    ]
    states = [state(0.0, **QUIET), state(8.0, **{**QUIET, **changes})]
    states += [state(60.0, **{**QUIET, **changes}), state(119.0, **QUIET)]
    return replace(plain, trace=trace, states=states)


def test_one_sign_of_work_is_enough() -> None:
    assert texts(doubts_of(idle())) == (
        "the GPU did not do the work: 500 W (500 W before engine load), no utilisation, "
        "no process, no memory taken",
    )
    signs: list[dict[str, Any]] = [
        {"watts": 530.0},
        {"utilization_percent": 1},
        {"processes": [[7, None]]},
        {"memory_used": 6 * 10**8},
    ]
    assert [texts(doubts_of(idle(**changes))) for changes in signs] == [()] * 4
    silent = replace(idle(utilization_percent=None), trace=[])
    states = [{**state, "utilization_percent": None} for state in silent.states]
    assert texts(doubts_of(replace(silent, states=states))) == (), "nothing is known of work"


def watched(utilization: Sequence[int | None], watts: float, **facts: Any) -> GpuLog:
    """A log of a GPU with an engine's process and memory on it, and its utilisation at 5 Hz."""
    plain = idle(watts, processes=[[7, None]], memory_used=10**9)
    step_s = min(0.2, (END_S - BEGIN_S) / max(1, len(utilization)))
    states = [
        {"time": BEGIN_S + step_s * i, "utilization_percent": percent, "memory_used": 10**9}
        for i, percent in enumerate(utilization)
    ]
    ordered = sorted((*plain.states, *states), key=lambda state: state["time"])
    return replace(plain, states=list(ordered), facts={**plain.facts, **facts})


def test_a_context_alone_does_no_work() -> None:
    """Utilisation of 0 convicts only where enough readings over long enough say it."""
    plain = watched([0] * 500, 515.0)
    (reason,) = doubts_of(plain).invalid
    assert reason.key is Key.GPU_UNUSED
    assert sentence(reason.text) == (
        "the GPU did not do the work: no utilisation in any of 501 readings over 99.8 s, "
        "515 W (500 W before engine load)"
    )
    power = [replace(r, value=700.0) if i % 100 == 0 else r for i, r in enumerate(plain.trace)]
    late = {"time": END_S + 0.1, "utilization_percent": 40}
    ordered = sorted((*plain.states, late), key=lambda state: state["time"])
    cases = [
        (watched([0] * 250 + [1] + [0] * 249, 515.0), END_S, 1.0),
        (watched([None] * 500, 515.0), END_S, 1.0),
        (watched([0] * 500, 515.0, instance=True, instances=1), END_S, 1.0),
        (watched([0] * 500, 515.0, instances=None), END_S, 1.0),
        (watched([0] * 500, 700.0), END_S, 1.0),
        (plain, END_S, 0.1),
        (watched([0] * 300, 515.0), BEGIN_S + 1.9, 1.0),
        (replace(plain, states=plain.states[::5]), END_S, 1.0),
        (replace(plain, trace=list(power)), END_S, 1.0),
        (replace(plain, states=list(ordered)), END_S, 1.0),
    ]
    found_of = [
        rejection_reasons(gpu, BEGIN_S, end_s, warm_s=WARM_S, busy=busy)
        for gpu, end_s, busy in cases
    ]
    assert [given.invalid for given in found_of] == [()] * len(cases)
    short = rejection_reasons(watched([0] * 300, 515.0), BEGIN_S, BEGIN_S + 59, warm_s=WARM_S)
    assert short.invalid != ()


def test_power_above_rest_counts_as_work_before_a_mean_has_settled() -> None:
    states: list[dict[str, Any]] = [
        {"time": 0.2 * i, "utilization_percent": 40, "memory_used": 5 * 10**8} for i in range(4)
    ]
    early = replace(watched([], 500.0, utilization_percent=5), states=states)
    late: list[dict[str, Any]] = [{**state, "utilization_percent": 3} for state in states]

    assert rejection_reasons(early, 0.1, 0.9, warm_s=0.0).invalid == ()
    assert rejection_reasons(replace(early, states=late), 0.1, 0.9, warm_s=0.0).invalid != ()
