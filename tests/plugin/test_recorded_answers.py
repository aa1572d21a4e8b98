"""Answers that MLCommons' client recorded are judged sample by sample, as those of our own runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.verdict import Outcome, Verdict
from tests.adapters.engines.word_model import save_model
from tests.cli.recorded import ANSWERS, edit_events
from tests.plugin.project import Project

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

SAMPLES = 60
SUITE = """\
schema = 1
round = "v4.1"

[workload]
name = "echo"
model = "model"
dataset = { use = "prompts", path = "questions.jsonl", columns = { reference = "number" } }
scorer = { use = "gsm8k" }

[[engines]]
use = "recorded"
name = "vllm"
precision = "fp8"
options = { folder = "${RECORDED}" }

[[scenarios]]
name = "Offline"
"""


@pytest.fixture
def judged(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose suite scores a copy of the recorded folder, and has accepted its scores."""
    save_model(project.path / "model", SAMPLES)
    rows = ({"prompt": f"The answer is {n}", "number": str(n)} for n in range(SAMPLES))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (project.path / "questions.jsonl").write_text(lines, "utf-8")
    (project.path / "s.mlperf.toml").write_text(SUITE, "utf-8")
    shutil.copytree(ANSWERS, project.path / "day1")
    monkeypatch.setenv("RECORDED", "day1")
    assert project.run("s.mlperf.toml", "--mlperf-update=missing").ret == 0
    return project


def verdict(project: Project, folder: str, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    monkeypatch.setenv("RECORDED", folder)
    project.run("s.mlperf.toml", "--mlperf-json=r.json")
    (only,) = project.verdicts("r.json").values()
    return only


@pytest.mark.process
def test_a_recorded_drop_of_accuracy_is_seen_pairwise(
    judged: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = verdict(judged, "day1", monkeypatch)
    worse = shutil.copytree(ANSWERS, judged.path / "day2")
    edit_events(worse, dict.fromkeys(range(0, SAMPLES, 3), "The answer is ?"))
    drop = verdict(judged, "day2", monkeypatch)

    assert (same.kind, same.outcome) == ("accuracy", Outcome.OK)
    assert drop.outcome is Outcome.ACC_DROP
    paired = next(each for each in drop.paired if each.metric == "gsm8k")
    assert (paired.samples, paired.changed) == (SAMPLES, SAMPLES // 3)
    assert drop.accuracy is not None
    assert drop.accuracy.scores["gsm8k"] == pytest.approx(100 * 2 / 3)
    assert drop.subject is not None
    assert drop.subject.fingerprint["engine.harness"] == "MLCommons endpoints"


@pytest.mark.process
def test_answers_that_cannot_be_paired_are_an_error_and_nothing_is_recorded(
    judged: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = {p: p.read_bytes() for p in judged.path.glob("baselines/**/*") if p.is_file()}
    cut = shutil.copytree(ANSWERS, judged.path / "day2")
    (cut / "sample_idx_map.json").unlink()
    monkeypatch.setenv("RECORDED", "day2")

    result = judged.run("s.mlperf.toml", "--mlperf-update=replace", "--mlperf-reason=cut")

    assert result.ret == 1
    text = " ".join(result.stdout.str().split())
    assert "day2: has no sample_idx_map.json, so answers cannot be matched" in text
    assert {p: p.read_bytes() for p in baseline} == baseline


def test_without_a_scorer_nothing_could_be_judged(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SUITE.replace('scorer = { use = "gsm8k" }', "").replace("${RECORDED}", "day1")
    Path("s.mlperf.toml").write_text(text, "utf-8")

    assert main(["plan", "s.mlperf.toml"]) == 2
    assert "recorded has no speed, only answers; add a scorer to [workload]" in " ".join(
        capsys.readouterr().err.split()
    )
