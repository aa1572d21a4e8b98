"""Readings that no hardware can give are unknown in a run: no fact, no fault, no other figure.

A sampler really runs, on a library that shows garbage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pytest_mlperf.core.energy import Source
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.figures import Findings
from tests.core.test_plausible import numbers
from tests.hardware.test_nvml import REFUSED
from tests.run.conftest import fake_gpus
from tests.run.sentences import notes_of, reasons_of
from tests.run.test_event_reasons import BEGIN_S, END_S, Watched, sampled

pytestmark = pytest.mark.process

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"

MOMENTS = {
    "power spike": "show field:186 4294967295 after=2 until=2.03",
    "power above the board": "show field:186 5000000 after=2 until=2.03",
    "power zero": "show field:186 0 after=2 until=2.03",
    "counter blank": f"show {COUNTER} 9223372036854775794 after=2 until=2.1",
    "counter zero": f"show {COUNTER} 0 after=2 until=2.1",
    "counter spike": f"show {COUNTER} 4294967295000 after=2 until=2.3",
    "ECC spike": "show nvmlDeviceGetTotalEccErrors 4294967295 after=2 until=2.5",
    "all busy": "show nvmlDeviceGetUtilizationRates 4294967295",
    "memory blank": "show nvmlDeviceGetMemoryInfo* 18446744073709551615",
    "all reasons": "show nvmlDeviceGetCurrentClocks* 18446744073709551615 after=1.5",
    "throttle blank": "show field:* 9223372036854775794 after=2 until=2.5",
}
"""Garbage for a moment, or for as long as the sampler runs."""

MUTE = "fail * 999 after=2"

ALWAYS = sorted({function for functions in REFUSED.values() for function in functions})
"""Functions that show blanks from the first call on, each of a GPU of its own."""

NAMES = [*MOMENTS, "mute", *ALWAYS]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    rules = [*MOMENTS.values(), MUTE, *(f"show {function} 4294967295" for function in ALWAYS)]
    general = [f"{rule} dev={number}" for number, rule in enumerate(rules)]
    with pytest.MonkeyPatch.context() as patch:
        fake = fake_gpus(tmp_path_factory.mktemp("garbage"), patch)
        yield Watched(fake, sampled(fake, general, *([["wave const 300"]] * len(rules))), NAMES)


def words(run: Findings) -> list[str]:
    return [*reasons_of(run), *notes_of(run), *map(sentence, run.energy[Source.NVML].notes)]


@pytest.mark.parametrize("name", [*MOMENTS, *ALWAYS])
def test_garbage_is_unknown_and_no_reported_value_is_impossible(
    watched: Watched, name: str
) -> None:
    run, number = watched.run(name), watched.names.index(name)
    texts = [re.sub(rf"GPU-?\s?{number}\b|replica {number}|field:?\w*", "", t) for t in words(run)]

    assert run.invalid == ()
    assert max(numbers(texts), default=0) <= 1000
    assert run.energy[Source.NVML].peak_w in (None, 300.0)
    energy = run.energy[Source.NVML]
    assert energy.joules is None or energy.joules == pytest.approx(600, rel=0.03)
    assert (energy.joules is None) <= (name == "field:186" or "energy" in name.lower())
    assert not any("anew" in text for text in texts)
    misread = [text for text in texts if "misread" in text]
    assert bool(misread) == (name in {"counter zero", "counter spike"}), texts
    assert all(0 <= value < 5000 for value in run.state.values())


def test_a_gpu_that_answers_nothing_more_is_not_watched_from_then_on(watched: Watched) -> None:
    """The speed stands, as with a sampler that broke; others are judged to the end."""
    run = watched.run("mute")
    (note,) = notes_of(run)

    match = re.fullmatch(
        r"GPUs were not watched from (\d\.\d) s on: "
        rf"NVML no longer answered for GPU {len(MOMENTS)}: "
        r"Unknown Error \(999\); later throttling or use by others is unknown",
        note,
    )
    assert match
    assert float(match[1]) == pytest.approx(2 - BEGIN_S, abs=0.2)
    assert run.invalid == ()
    assert run.energy.get(Source.NVML) is None
    assert str(run.energy_unknown).endswith(f"(999), {match[1]} s into the run")
    assert watched.log.peak_memory(0.0) is None

    both = watched.run("power spike", "mute")
    assert notes_of(both) == (note,)
    gpu = watched.gpu("mute")
    assert gpu.last_s == pytest.approx(watched.at(2), abs=0.2)
    assert [g.uuid for g in watched.log.gpus if g.silent] == [gpu.uuid]
    assert watched.at(END_S) > watched.log.read_until_s(gpu, watched.at(END_S))
