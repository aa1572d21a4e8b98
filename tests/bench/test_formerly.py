"""Which baseline applied before, and what changed since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_mlperf.bench.case import baseline_file
from pytest_mlperf.bench.policy import former_baseline, most_similar_machine
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.stores import baselines
from tests.core.made import present
from tests.core.test_baseline import baseline, record

BOARD: dict[str, Property] = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "memory_gib": 80,
    "power_limit_w": 700,
    "ecc": True,
    "mig": False,
}

CASE = Case(
    workload="resnet50",
    scenario=Scenario.OFFLINE,
    engine="ort",
    precision="fp32",
    accelerator="2xH100",
)


def test_the_conditions_of_a_baseline_are_shown_with_those_here() -> None:
    cases: list[tuple[dict[str, Property], str]] = [
        ({"power_limit_w": 500}, "power_limit_w 700, here 500"),
        ({"ecc": False}, "ecc True, here False"),
        ({"mig": None}, "mig False, here unknown"),
        (
            {"memory_gib": 94, "power_limit_w": 500},
            "memory_gib 80, here 94; power_limit_w 700, here 500",
        ),
    ]
    for changed, words in cases:
        board_before = present(most_similar_machine(baseline(record(BOARD)), {**BOARD, **changed}))
        text = f"baseline of 2026-11-19 is for another machine: {words}"
        first = text.split("; ", maxsplit=1)[0] + (" and 1 more" if len(changed) > 1 else "")
        assert (board_before.in_words, board_before.short_text) == (text, first)
    assert most_similar_machine(baseline(), BOARD) is None


def accept(root: Path, accelerator: str, identity: dict[str, Property]) -> None:
    case = replace(CASE, accelerator=accelerator)
    kept = replace(baseline(record(identity)), accelerator=accelerator)
    baselines.save(baseline_file(root, case, "quick"), kept)


def commit_before(root: Path) -> str | None:
    file = baseline_file(root, CASE, "quick")
    applied = former_baseline(baselines.load(file), BOARD, root, file, CASE)
    return applied.in_words if applied else None


def test_another_count_of_the_accelerator_is_named_where_there_is_nothing_nearer(
    tmp_path: Path,
) -> None:
    """A damaged file of another count costs nothing."""
    applied = "baseline of 2026-11-19 is for another machine:"
    assert commit_before(tmp_path / "none") is None
    accept(tmp_path, "H200", BOARD)
    assert commit_before(tmp_path) is None
    accept(tmp_path, "H100", BOARD)
    assert commit_before(tmp_path) == f"{applied} accelerator H100, here 2xH100"
    accept(tmp_path, "4xH100", BOARD)
    baseline_file(tmp_path, replace(CASE, accelerator="4xH100"), "quick").write_text("{", "utf-8")
    assert commit_before(tmp_path) == f"{applied} accelerator H100, here 2xH100"

    accept(tmp_path, "2xH100", {**BOARD, "ecc": False})

    assert commit_before(tmp_path) == f"{applied} ecc False, here True"
