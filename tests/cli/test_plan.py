"""`pytest-mlperf plan`: what would run and for how long, as a table, a manifest, a matrix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.cli.across import read_prices
from pytest_mlperf.cli.plan import (
    JOB_MINUTES,
    MATRIX_LIMIT,
    guarantee_summary,
    money,
    runner_labels,
)
from pytest_mlperf.cli.suites import read_suites
from pytest_mlperf.core.guarantees import APPEND_OPTIONS, Guarantee
from pytest_mlperf.reports.costs import CaseCost
from tests.addons.fleet.test_slurm import suite as small_suite
from tests.cli.lab import ACCURACY, CASE, PERFORMANCE, Lab
from tests.cli.text import Say, differing, flat, page, widest

SUITE = """\
schema = 1
round = "v4.1"
profile = "{profile}"
[workload]
name = "{name}"
dataset = {{ use = "synthetic", path = "${{NOWHERE}}/x" }}
[[engines]]
use = "null"
accelerators = {accelerators}
[[scenarios]]
name = "Offline"
[[scenarios]]
name = "SingleStream"
"""


def suite(name: str, *accelerators: str, profile: str = "quick", folder: str = "suites") -> None:
    """Write a suite whose data is not here: a plan does without."""
    path = Path(folder, f"{name}.mlperf.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = SUITE.format(name=name, profile=profile, accelerators=json.dumps(accelerators))
    path.write_text(text, "utf-8")


def test_without_history_times_come_from_the_suites(here: Path, say: Say) -> None:
    suite("chat", "8xH200", profile="official")
    suite("vision", "cpu")
    code, output = say("plan")
    assert (code, output) == (0, page("plan.txt"))


def test_with_history_times_are_those_of_earlier_sessions(own_lab: Lab, say: Say) -> None:
    """A damaged results file is left out with a message."""
    assert "with fewer than 4 days" not in say.ends(0, "plan")
    own_lab.of_one_session()
    output = say.ends(0, "plan", "--accelerator", "cpu")
    assert flat(output) == flat(
        "case one run at most from tests "
        f"{CASE} 2 s 6 s 3 sessions accuracy, performance "
        "1 case: usually 3 s and up to 15 s waiting for an idle machine; "
        "2 s if one run decides each, 6 s if all 5 are needed; times "
        "from sessions include loading and accuracy passes "
        "with --mlperf-against, which measures another build too, about 6 s "
        "accelerator-hours: cpu 0.00056 to 0.0017 "
        "baselines: 1 for 1 case; 1 with fewer than 4 days, so verdicts are provisional: "
        "repeat --mlperf-update=missing on other days"
    )
    assert widest(output) <= 80
    _, official = say("plan", "--accelerator", "cpu", "--profile", "official")
    assert "10 min 2 s  50 min 10 s" in official, "the history is of another profile"
    assert " sessions  " not in official
    own_lab.unchanged.write_text("{", "utf-8")
    output = say.ends(0, "plan")
    assert "2 sessions" in output
    assert f"left out: {own_lab.unchanged.relative_to(own_lab.path)}: not a results file" in output


def test_the_manifest_names_every_test_that_pytest_will_run(
    lab: Lab, say: Say, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab.path)
    code, output = say("plan", "--format", "json")
    manifest = json.loads(output)
    collected = pytester.runpytest_inprocess("suites", "--collect-only", "-q", "-p", "no:xdist")
    assert code == 0
    here = [one["test"] for one in manifest["tests"] if one["accelerator"] == "cpu"]
    assert here == [ACCURACY, PERFORMANCE] == [x for x in collected.outlines if "::" in x]
    assert [one["kind"] for one in manifest["tests"]] == ["accuracy", "performance"] * 2
    first, second = manifest["cases"]
    assert (first["id"], first["suite"], first["line"]) == (CASE, "suites/first.mlperf.toml", 10)
    assert (first["workload"], first["scenario"], first["accelerator"], first["profile"]) == (
        "first",
        "Offline",
        "cpu",
        "quick",
    )
    assert first["runs"] == {"least": 1, "most": 5}
    assert (first["seconds"]["sessions"], second["seconds"]["sessions"]) == (3, 0)
    assert 0 < first["seconds"]["least"] < first["seconds"]["most"]
    assert second["seconds"] == {"least": 2.1, "most": 10.6, "sessions": 0}
    assert set(manifest["accelerator_hours"]) == {"cpu", "H200"}
    assert second["baseline"] is None
    held = first["baseline"]
    assert (held["lacks"], held["sessions"]) == (None, 4)
    assert held["runs"] >= 5


def test_pytest_plans_the_same_minutes(
    own_lab: Lab, say: Say, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same earlier sessions."""
    monkeypatch.chdir(own_lab.path)
    monkeypatch.setenv("COLUMNS", "200")
    planned = pytester.runpytest_inprocess("suites", "--mlperf-plan", "-p", "no:xdist")
    output = say.ends(0, "plan").splitlines()
    of_both = [
        (
            [line.split() for line in lines if line.startswith("first-")],
            re.findall(r"usually \d+ s|\d+ s if (?!nothing)\w+", " ".join(lines)),
        )
        for lines in (output, planned.outlines)
    ]
    assert of_both[0] == of_both[1]
    assert ["3", "sessions"] in [row[5:7] for row in of_both[0][0]]
    assert len(of_both[0][1]) == 3


def test_the_matrix_has_one_job_per_accelerator_and_suite(here: Path, say: Say) -> None:
    suite("b", "H200", "cpu", "8xH200", profile="official")
    suite("a", "H200")

    def job(accelerator: str, suite: str, label: str, minutes: int) -> dict[str, object]:
        runner = ["self-hosted", "linux", label]
        return {"accelerator": accelerator, "suite": suite, "runner": runner, "minutes": minutes}

    output = say.ends(0, "plan", "--format", "github")
    assert output.count("\n") == 1, "one line: it goes into GITHUB_OUTPUT"
    a, b = "suites/a.mlperf.toml", "suites/b.mlperf.toml"
    assert json.loads(output) == {
        "include": [
            job("8xH200", b, "gpu-8xh200", 351),
            job("H200", a, "gpu-h200", 81),
            job("H200", b, "gpu-h200", 351),
            job("cpu", b, "cpu", 301),
        ]
    }
    assert say("plan", "suites/b.mlperf.toml", "suites", "--format", "github") == (0, output)


def test_a_job_has_time_for_what_its_tests_take(here: Path, say: Say) -> None:
    """One more run for each compliance test, and hours for answers that are generated."""
    official = SUITE.replace("${{NOWHERE}}/x", "x").replace('name = "{name}"', 'name = "resnet50"')

    def minutes(text: str, *options: str, on: str = "H200") -> int:
        Path("a.mlperf.toml").write_text(text.format(profile="quick", accelerators=f'["{on}"]'))
        _, output = say("plan", "a.mlperf.toml", "--format", "github", *options)
        return int(json.loads(output)["include"][0]["minutes"])

    plain = minutes(official)
    spoken = official.replace("resnet50", "llama2-70b-99").replace("SingleStream", "Server")
    # Two scenarios of ResNet-50, each with TEST01, TEST04 and TEST05 of a minute and 5 of loading.
    audits = 2 * 3 * (3 * 1 + 5)
    assert minutes(official, "--compliance") == pytest.approx(plain + audits, abs=1)
    assert minutes(spoken) == plain + 2 * 7 * 60
    assert minutes(spoken, "--max-runs", "5000") == JOB_MINUTES
    assert minutes(official, on="cpu") == 2 * (3 * 5 + 8 * 60) + 1
    twin = official.replace('name = "resnet50"', 'name = "small"\ntwin_of = "resnet50"')
    assert minutes(twin, on="cpu") == 31


def test_what_cannot_be_planned_is_said(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix that GitHub would cut, an accelerator that no suite names, a wrong suite."""
    assert MATRIX_LIMIT == 256
    monkeypatch.setattr("pytest_mlperf.cli.plan.MATRIX_LIMIT", 4)
    for number in range(3):
        suite(f"s{number}", "H200", "H100")
    assert say("plan", "--format", "github") == (
        2,
        "pytest-mlperf: 6 jobs, but a GitHub matrix has at most 4 (H100 3, H200 3); name "
        "fewer suites, or one --accelerator\n",
    )
    output = say.ends(0, "plan", "--format", "github", "--accelerator", "H100")
    assert len(json.loads(output)["include"]) == 3
    absent = "pytest-mlperf: no case runs on 'B200'; the suites use: H200, H100"
    assert differing(say, [(("plan", "--accelerator", "B200"), 2, (absent,))]) == []
    Path("suites/b.mlperf.toml").write_text("schema = 1\nrond = 2\n", "utf-8")
    defect = "suites/b.mlperf.toml:2: rond: unknown key 'rond'; did you mean 'round'?"
    assert differing(say, [(("plan",), 2, (defect,))]) == []


@settings(max_examples=25)
@given(st.from_regex("\\A([1-9]x)?[A-Z][A-Za-z0-9._]{0,8}\\Z"))
def test_every_accelerator_has_a_runner_of_its_own(accelerator: str) -> None:
    labels = runner_labels(accelerator)
    assert labels[:2] == ["self-hosted", "linux"]
    assert labels[2] == f"gpu-{accelerator.lower()}"


def test_the_first_day_on_which_a_baseline_ends_is_told_with_what_renews_it() -> None:
    """`doctor` prints it too."""

    def promised(until: str | None, lacks: Any = None) -> Guarantee:
        return Guarantee(
            lacks=lacks, runs=8, sessions=4, days=4, age_days=1.0, run_sd=0.01, final_until=until
        )

    ends = (promised("2026-12-09"), promised("2026-12-05"), promised("2026-11-01", "old"))
    notes = guarantee_summary([], {(Path(f"{n}"), ""): one for n, one in enumerate(ends)})

    assert notes == (
        "baselines: 3 for 0 cases; 1 too old for a final verdict: renew with "
        f"{APPEND_OPTIONS}; final until 2026-12-05 or later; to renew one: "
        f"{APPEND_OPTIONS} with the same build"
    )


PRICED = """\
[prices]
H100 = { usd_per_gpu_hour = 2.5, as_of = 2026-11-01, source = "our contract" }
"""


def test_the_price_is_that_of_a_file_else_of_the_suite(here: Path, say: Say) -> None:
    Path("suites").mkdir()
    small_suite("a.mlperf.toml", "a", '["cpu", "8xH100", "H200"]')
    with Path("suites/a.mlperf.toml").open("a", encoding="utf-8") as file:
        file.write("[prices]\nH200 = { usd_per_gpu_hour = 4, as_of = 2026-10-01 }\n")
        file.write("H100 = { usd_per_gpu_hour = 9, as_of = 2026-10-01 }\n")
    Path("prices.toml").write_text(PRICED, "utf-8")
    planned = read_suites([Path("suites/a.mlperf.toml")], None)
    measured = {
        (case.path, case.case.id): CaseCost(first_s=3600.0, more_s=900.0) for case in planned
    }
    of_file = read_prices(Path("prices.toml"))
    assert money(planned, measured, 5, of_file) == [
        "cost: 24.00 to 48.00 USD, without cpu, which [prices] lacks",
        "prices: H100 2.5 USD per hour, 2026-11-01, our contract; H200 4 USD per hour, 2026-10-01",
    ]
    assert money(planned[:1], measured, 5, of_file) == ["cost: unknown; [prices] lacks cpu"]
    assert money(planned[:1], measured, 5, {}) == []
    assert "our contract" in say("plan", "--prices", "prices.toml")[1]
    refused = say("plan", "--prices", "prices.toml", "--format", "json")
    assert refused == (2, "pytest-mlperf: --prices needs --format table\n")
