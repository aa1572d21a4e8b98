"""One run that does not count before the first one of a session that does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job
from pytest_mlperf.run.conditions import MAX_WARMUP_SECONDS, Mode, WarmUps, needs_warm_up, shortened
from tests.run.test_figures import job

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
dataset = {{ use = "synthetic", samples = 32 }}
[[engines]]
use = "acme:Acme"
accelerators = ["H200"]
[[scenarios]]
name = "{scenario}"
{limit}
target_qps = 500
min_duration = "{seconds}s"
"""


def planned(folder: Path, *, scenario: str = "Offline", seconds: int = 600) -> Job:
    limit = 'latency_limit = "1s"' if scenario == "Server" else ""
    return job(folder, SUITE.format(scenario=scenario, seconds=seconds, limit=limit))


def test_a_gpu_that_does_real_work_is_warmed_up_once_in_a_session(tmp_path: Path) -> None:
    """Also by several workers of it, which know each other by the folder alone."""
    case, made = planned(tmp_path), []
    first, other = (WarmUps("auto", tmp_path / ".warm") for _ in range(2))

    def warm_up(warmups: WarmUps, *names: str) -> bool:
        return warmups.ensure(case, names, lambda: made.append(names))

    assert [warm_up(first, "GPU-a"), warm_up(other, "GPU-a"), warm_up(first, "GPU-b")] == [True] * 3
    assert warm_up(other, "GPU-a", "GPU-b", "GPU-c/d") is True
    assert made == [("GPU-a",), ("GPU-b",), ("GPU-a", "GPU-b", "GPU-c/d")]

    cases: dict[tuple[str, str, Mode], bool] = {
        ("H200", "acme:Acme", "auto"): True,
        ("8xH100", "acme:Acme", "auto"): True,
        ("cpu", "acme:Acme", "auto"): False,
        ("H200", "null", "auto"): False,
        ("cpu", "null", "always"): True,
        ("H200", "acme:Acme", "never"): False,
    }
    assert {case: needs_warm_up(*case) for case in cases} == cases


def test_without_a_warm_up_the_first_run_says_so_and_one_is_no_longer_than_needed(
    tmp_path: Path,
) -> None:
    case, made = planned(tmp_path), []
    never, auto = (WarmUps(mode, tmp_path / mode) for mode in MODES)
    warmed = [never.ensure(case, ["GPU-a"], lambda: made.append(1)) for _ in range(3)]
    auto.ensure(case, ["cpu"], lambda: made.append(1))  # what is only pretended
    assert (warmed, made) == ([False, True, True], [])

    scenarios = ("Offline", "Server", "SingleStream", "MultiStream")
    for scenario, (seconds, expected) in itertools.product(
        scenarios, ((600, MAX_WARMUP_SECONDS), (5, 5.0))
    ):
        settings = planned(tmp_path, scenario=scenario, seconds=seconds).settings
        short = shortened(settings)
        assert short.fixed_work_s == expected
        as_before = replace(short, fixed_work_s=settings.fixed_work_s)
        assert as_before == replace(settings, min_query_count=1)

    official = replace(planned(tmp_path).settings, fixed_work_s=None, min_duration_ms=600_000)
    short = shortened(official)
    assert (short.min_duration_ms, short.min_query_count) == (60_000, 1)


MODES: tuple[Mode, Mode] = ("never", "auto")


def test_a_warm_up_that_breaks_says_nothing_and_a_folder_without_rights_is_an_error(
    tmp_path: Path,
) -> None:
    case = planned(tmp_path)

    def breaks() -> None:
        raise RunError("engine", "no such kernel")

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert WarmUps("auto", tmp_path / "one").ensure(case, ["GPU-a"], breaks) is True
    with pytest.raises(KeyboardInterrupt):
        WarmUps("auto", tmp_path / "two").ensure(case, ["GPU-a"], interrupted)

    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(RunError, match=r"file/.warm/GPU-a cannot be written: Not a directory"):
        WarmUps("auto", tmp_path / "file" / ".warm").used(["GPU-a"])
