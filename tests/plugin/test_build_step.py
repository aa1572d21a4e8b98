"""Test whole sessions on suites that quantise.

Built once, named by recipe, with changes reported.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.checkpoints import build as checkpoint_about
from pytest_mlperf.run.checkpoints._store import SHARED
from tests.plugin.project import RATE, Project, case, near, spec_of
from tests.run.builders_that_fail import NO_WEIGHTS

OURS = Path(__file__).parents[1] / "run" / "builders_that_fail.py"
QUANTISED = case(engine="null-Acme", precision="int8")


class Quantising:
    """A project with a model and a builder of its own."""

    def __init__(self, project: Project) -> None:
        self.project = project
        shutil.copy(OURS, project.path)
        model = project.path / "suites" / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}", "utf-8")
        (model / "model.safetensors").write_bytes(NO_WEIGHTS)
        self.version("1.0")

    @property
    def builds(self) -> list[str]:
        """Return the keys of the finished builds."""
        folder = self.project.path / ".mlperf" / "builds"
        return [path.parent.name for path in folder.glob("*/provenance.json")]

    def suite(self, recipe: str = "int8", **more: str) -> None:
        """Write the suite; the engine is fast or slow by its option alone."""
        latency = more.get("latency", "0.002")
        file = self.project.suite(
            engines=(
                '[[engines]]\nuse = "null"\nprecision = "int8"\nmodel = "model"\n'
                f'build = {{ use = "builders_that_fail:Acme", recipe = "{recipe}" }}\n'
                f"options = {{ latency_s = {latency}, batch_size = 16, threads = 1 }}\n"
            )
        )
        assert file.is_file()

    def version(self, version: str) -> None:
        """Install a version of the quantiser, by its metadata."""
        for old in self.project.path.glob("acme_quantiser-*.dist-info"):
            shutil.rmtree(old)
        about = self.project.path / f"acme_quantiser-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        text = f"Metadata-Version: 2.1\nName: acme-quantiser\nVersion: {version}\n"
        about.write_text(text, "utf-8")
        checkpoint_about._asked.cache_clear()


@pytest.fixture
def quantising(project: Project, monkeypatch: pytest.MonkeyPatch) -> Quantising:
    monkeypatch.delenv(SHARED, raising=False)
    monkeypatch.syspath_prepend(project.path)
    return Quantising(project)


def test_the_engine_gets_the_built_checkpoint_and_another_recipe_has_no_baseline(
    quantising: Quantising,
) -> None:
    """Looking builds nothing; built once for two sessions, its folder is the worker's model."""
    quantising.suite()
    project = quantising.project
    project.baseline(near(RATE), of=QUANTISED)
    for looks in ("--collect-only", "--mlperf-plan"):
        result = project.run("suites", looks)
        assert result.ret == 0
        assert "null-Acme-int8-cpu" in result.stdout.str()
    assert not (project.path / ".mlperf" / "builds").exists()

    for _ in range(2):
        project.run("suites").assert_outcomes(passed=1)

    (key,) = quantising.builds
    models = {spec_of(folder)["model"] for folder in project.run_folders()}
    assert models == {str(project.path / ".mlperf" / "builds" / key / "model")}
    quantising.suite("int4")
    assert project.run("suites", "--mlperf-json=int4.json").ret == 0
    verdict = project.verdicts("int4.json")["performance"]
    assert verdict.case.id == "first-Offline-null-Acme-int4-int8-cpu"
    assert verdict.outcome is Outcome.NO_BASELINE


def test_a_changed_builder_is_reported_with_a_drop(quantising: Quantising) -> None:
    quantising.suite()
    project = quantising.project
    project.record("suites")
    project.over_days()
    shutil.rmtree(project.path / ".mlperf" / "runs")
    quantising.version("1.1")
    quantising.suite(latency="0.01")

    result = project.run("suites")

    verdict = project.verdicts()["performance"]
    assert verdict.outcome is Outcome.PERF_DROP
    assert "build.acme-quantiser 1.0 → 1.1" in verdict.baseline.changed
    assert len(quantising.builds) == 2
    result.stdout.fnmatch_lines(["*build.acme-quantiser 1.0 → 1.1*"])


def test_a_builder_that_breaks_is_an_error(quantising: Quantising) -> None:
    """With its own words and the end of its log; nothing is measured."""
    quantising.suite("breaks")

    result = quantising.project.run("suites")

    verdict = quantising.project.verdicts()["performance"]
    assert verdict.outcome is Outcome.ERROR
    assert sentence(verdict.headline).startswith(
        "build: building builders_that_fail:Acme breaks: ZeroDiv"
    )
    assert "the quantiser said this" in verdict.logs.tail
    assert verdict.logs.file is not None
    assert verdict.logs.file.endswith("build.log")
    assert quantising.builds == []
    result.assert_outcomes(failed=1)
