"""examples/addon: an add-on as a package of its own, and the one that docs/extending.md builds."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.extension import Case, CaseResult, Subject, accept_runs, judge_runs
from tests.examples.installed import install, run
from tests.reports import verdicts

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "addon"
PAGE = ROOT / "docs" / "extending.md"
QUICK = "-p no:cacheprovider -o mlperf_control=off -o mlperf_wait_idle=0"


def test_the_example_keeps_its_own_tests_and_has_its_command(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "project")
    install(tmp_path)

    tests = run(tmp_path, "pytest", "-q", "tests")
    command = run(tmp_path, "pytest_mlperf", "contract", "--help")

    assert tests.returncode == 0, tests.stdout
    assert "Exit 1 where a promise is not kept." in command.stdout


def test_the_add_on_of_the_page_works_as_it_says(tmp_path: Path) -> None:
    """The files are those of the page, and the message is too."""
    text = PAGE.read_text("utf-8")
    project = tmp_path / "project" / "mlperf-contract"
    project.mkdir(parents=True)
    for name, language in (("pyproject.toml", "toml"), ("mlperf_contract.py", "python")):
        block = re.search(rf"`{name}`:\n\n```{language}\n(.*?)```", text, re.DOTALL)
        assert block, name
        (project / name).write_text(block[1], "utf-8")
    install(tmp_path, "./mlperf-contract")
    assert run(tmp_path, "pytest_mlperf", "init").returncode == 0
    promise = "[demo-Offline-null-fp32-cpu]\nthroughput = 600\n"
    (tmp_path / "project" / "contract.toml").write_text(promise, "utf-8")

    done = run(tmp_path, "pytest", "suites", "--mlperf-contract=contract.toml", addopts=QUICK)

    assert done.returncode == 1, done.stdout
    assert re.search(r"\nGATE FAIL contract: [\d.]+ of 600 samples/s promised\n", done.stdout)


def test_runs_of_others_are_judged_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unchanged runs are ok against the baseline that the page accepts, and slow ones no more."""
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text("utf-8").partition("## Judge other measurements")[2]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block
    names: dict[str, object] = {}
    exec(block[1] + AGAIN, names)

    assert capsys.readouterr().out == "NO BASELINE\n"
    assert [str(outcome) for outcome in names["outcomes"]] == ["PROVISIONAL", "PERF DROP"]  # type: ignore[attr-defined]


WRONG: Mapping[str, dict[str, object]] = {
    "no metric 'througput'; did you mean 'throughput'?": {"limits": {"througput": 0.03}},
    "the limit of throughput is '3%'; must be a share above 0": {"limits": {"throughput": "3%"}},
    "runs[0].metrics.throughput: must be at least 1e-30": {"metrics": {"throughput": 0.0}},
    "runs[0].metrics.throughput: must be a valid number, not None": {
        "metrics": {"throughput": math.nan}
    },
    "runs[0].samples: must be at least 0, not -1; pass judge_runs a valid value": {"samples": -1},
    "case.scenario": {"scenario": "offline"},
    "profile": {"profile": "nightly"},
}


@pytest.mark.parametrize("words", WRONG)
def test_runs_that_cannot_be_are_refused_by_name(words: str, tmp_path: Path) -> None:
    fields = WRONG[words]
    case: Any = Case(
        workload="w", scenario=Scenario.OFFLINE, engine="e", precision="fp8", accelerator="x"
    )
    run: Any = verdicts.run()
    case = replace(case, **{k: v for k, v in fields.items() if k == "scenario"})
    run = replace(run, **{k: v for k, v in fields.items() if k in ("metrics", "samples")})
    more: Any = {"limits": {"throughput": 0.03}, **fields}
    more = {k: v for k, v in more.items() if k in ("limits", "profile")}
    subject = Subject(identity={"gpu": "x"}, fingerprint={}, surroundings={})

    with pytest.raises(MlperfError) as refused:
        judge_runs(case, [run], subject=subject, baselines=tmp_path, **more)

    assert words in str(refused.value)


def test_a_drop_is_accepted_only_if_asked(tmp_path: Path) -> None:
    """And so is nothing that was not measured."""
    case = Case(
        workload="w", scenario=Scenario.OFFLINE, engine="e", precision="fp8", accelerator="x"
    )
    subject = Subject(identity={"gpu": "x"}, fingerprint={}, surroundings={})
    limits = {"throughput": 0.03}

    def judged(rate: float, runs: int = 8) -> CaseResult:
        made = [replace(verdicts.run(throughput=rate), session=f"{i // 2}") for i in range(runs)]
        days = [
            replace(one, started=f"2026-11-{20 + i // 2}T08:00:00+00:00")
            for i, one in enumerate(made)
        ]
        return judge_runs(case, days, subject=subject, limits=limits, baselines=tmp_path)

    accept_runs(judged(400.0), baselines=tmp_path, reason="first")
    drop = judged(200.0)

    assert drop.failed
    for result in (drop, judged(400.0, runs=0)):
        with pytest.raises(MlperfError):
            accept_runs(result, baselines=tmp_path, reason="slower")
    accept_runs(drop, baselines=tmp_path, reason="slower", drop=True)
    assert not judged(200.0).failed


AGAIN = """
from dataclasses import replace
outcomes = []
for share in (1.0, 0.5):
    now = [replace(r, session="2", metrics={"throughput": share * 408}) for r in runs]
    again = judge_runs(case, now, subject=subject, limits=limits, baselines=Path("baselines"))
    outcomes.append(again.verdict.outcome)
"""
