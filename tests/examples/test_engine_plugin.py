"""examples/engine-plugin: an engine as a package of its own, written from the docs."""

from __future__ import annotations

import importlib
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf import registry
from pytest_mlperf.cli import main
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.testing import check_engine
from tests.examples.installed import install, run
from tests.jobs import job_of

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine-plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the example, with the package installed next to it."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "project", ignore=shutil.ignore_patterns("*.egg-info"))
    install(folder)
    made = run(folder, "mlperf_numpy.make_model", "knn.npz")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example on the path of this process, with the entry points it declares."""
    shutil.copytree(EXAMPLE, tmp_path / "project")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [f"Name: {project['name']}", f"Version: {project['version']}"]
    metadata = tmp_path / "site" / "example.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("\n".join(lines), "utf-8")
    tables = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(tables), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    registry.registered.cache_clear()
    registry.all_registered.cache_clear()
    yield tmp_path / "project"
    registry.registered.cache_clear()
    registry.all_registered.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] == "mlperf_numpy"]:
        del sys.modules[module]


def test_its_suite_is_planned_and_its_engine_keeps_the_contract(
    importable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["options", "knn"]) == 0
    assert "batch_size" in capsys.readouterr().out
    write_model = importlib.import_module("mlperf_numpy.make_model").write_model
    write_model(importable / "knn.npz")
    planned = plan_suite(importable / "suites" / "shapes.mlperf.toml")
    assert [case.case.scenario for case in planned] == ["Offline", "SingleStream"]
    job = job_of(planned[0])
    dataset = registry.resolve(job.dataset.target)(**job.dataset.options)
    count = 128

    def share_right(model: str) -> float:
        engine = registry.resolve(job.engine.target)
        options = {**job.engine.options}
        answers = check_engine(engine, dataset, model=model, options=options, samples=count)
        classes = [int.from_bytes(answers[index], "little") for index in range(count)]
        right = sum(classes[index] == dataset.reference(index) for index in range(count))
        return float(right / count)

    bounds = planned[0].bounds(())
    assert bounds is not None
    least = bounds["top1"].low
    assert least is not None
    write_model(importable / "damaged.npz", damaged=0.3)
    assert 100 * share_right(str(importable / "damaged.npz")) < least
    assert 100 * share_right(str(job.model)) >= least


@pytest.mark.nightly
def test_its_own_tests_pass(installed: Path) -> None:
    done = run(installed, "pytest", "-q", "tests")

    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
def test_its_engine_is_known_and_its_suite_is_measured(installed: Path) -> None:
    options_run = run(installed, "pytest_mlperf", "options", "knn")
    assert "batch_size" in options_run.stdout

    done = run(installed, "pytest", "suites", "-omlperf_control=off", "--mlperf-json=all.json")

    assert done.returncode == 0, done.stdout
    session_results = read_results(installed / "project" / "all.json")
    assert [(r.verdict.kind, r.verdict.outcome) for r in session_results.cases] == [
        ("accuracy", Outcome.OK),
        ("performance", Outcome.NO_BASELINE),
    ] * 2


@pytest.mark.nightly
def test_a_damaged_model_fails_the_gate(installed: Path) -> None:
    damaged = run(installed, "mlperf_numpy.make_model", "knn.npz", "--damaged", "0.3")
    assert damaged.returncode == 0, damaged.stderr

    done = run(installed, "pytest", "suites", "-k", "accuracy and Offline")

    assert done.returncode == 1
    assert "GATE FAIL" in done.stdout
