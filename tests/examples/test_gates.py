"""examples/gates: the scripts judge recorded files of four harnesses."""

from __future__ import annotations

import ast
import copy
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.addons.judge.files import DATA, spread

GATES = Path(__file__).parents[2] / "examples" / "gates"

MAX_LINES = 30

PAIRS = 6


def pytest_benchmark(raw: Any, slower: float) -> None:
    for benchmark in raw["benchmarks"]:
        benchmark["stats"]["median"] *= slower


def guidellm(raw: Any, slower: float) -> None:
    for benchmark in raw["benchmarks"]:
        benchmark["metrics"]["output_tokens_per_second"]["successful"]["mean"] /= slower


def asv(raw: Any, slower: float) -> None:
    for row in raw["results"].values():
        row[0] = [value and value * slower for value in row[0]]


def reframe(raw: Any, slower: float) -> None:
    for row in raw["runs"][0]["testcases"][0]["perfvalues"].values():
        row[0] = row[0] * slower if row[4] == "s" else row[0] / slower


RECORDED: dict[str, tuple[str, Callable[[Any, float], None]]] = {
    "pytest_benchmark_gate": ("pytest-benchmark.json", pytest_benchmark),
    "guidellm_gate": ("real/guidellm-0.8.1.json", guidellm),
    "asv_gate": ("real/asv-0.6.6/host/61ecb21b-existing-py3.11.json", asv),
    "reframe_gate": ("real/reframe-4.10.4.json", reframe),
}


def code(gate: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a script exits with."""
    monkeypatch.setattr(sys, "argv", [gate, str(folder / "old"), str(folder / "new")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(GATES / f"{gate}.py"))
    return ended.value.code


def record(gate: str, folder: Path, slower: float) -> None:
    name, change = RECORDED[gate]
    raw = json.loads((DATA / name).read_text("utf-8"))
    for side, factor in enumerate((1.0, slower)):
        for number, noise in enumerate(spread(side, PAIRS)):
            content = copy.deepcopy(raw)
            change(content, factor * (1 + (noise - 1) / 2))
            file = folder / ("old", "new")[side] / f"{number}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize("gate", RECORDED)
def test_a_gate_passes_an_equal_build_and_fails_a_slower_one(
    gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(gate, tmp_path, 1.0)
    assert not code(gate, tmp_path, monkeypatch)
    assert {row.split()[0] for row in capsys.readouterr().out.splitlines()} == {"pass"}
    record(gate, tmp_path, 1.12)
    assert code(gate, tmp_path, monkeypatch) is True
    rows = capsys.readouterr().out.splitlines()
    assert {row.split()[0] for row in rows} == {"fail"}

    (tmp_path / "new" / "0.json").unlink()
    assert "both sides need as many files" in code(gate, tmp_path, monkeypatch)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_reframe_times_of_any_unit_are_better_if_lower(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record("reframe_gate", tmp_path, 1.12)
    for file in tmp_path.rglob("*.json"):
        file.write_text(file.read_text("utf-8").replace('"s"', f'"{unit}"'), "utf-8")

    assert code("reframe_gate", tmp_path, monkeypatch) is True
    changes = {row.split()[-1]: row.split()[:2] for row in capsys.readouterr().out.splitlines()}
    outcome, change = changes[f"[{unit}]"]
    assert (outcome, change[0]) == ("fail", "+")
    assert changes["[MB/s]"][1][0] == "-"


def test_gates_are_short_and_import_the_statistics_alone() -> None:
    files = sorted(GATES.glob("*.py"))
    assert [file.stem for file in files] == sorted(RECORDED)
    for file in files:
        text = file.read_text("utf-8")
        assert len(text.splitlines()) <= MAX_LINES
        nodes = list(ast.walk(ast.parse(text)))
        modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        modules |= {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        foreign = {name for name in modules if name not in sys.stdlib_module_names}
        assert all(f"{name}.".startswith("pytest_mlperf.judge.") for name in foreign)
