"""Names of a results file, or of anything else, lead nowhere but below their folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.run.project import new_folder
from pytest_mlperf.stores import accuracy_baselines, baselines, calibration

ROOT = Path("/project/baselines")

HOSTILE = st.sampled_from(
    ["..", "../../../up", "/etc", "a/b", "a\nb", "a\0b", "", ".", "-", "a\\b", "C:", "a b", "~"]
)

NAMES = st.one_of(HOSTILE, st.text(max_size=8), st.from_regex(r"[A-Za-z0-9][./\n+-]{0,4}\w?"))


def performance(names: list[str]) -> Path:
    accelerator, profile, *others = names
    fields = dict(zip(("workload", "scenario", "engine", "precision"), others, strict=True))
    case: Any = SimpleNamespace(accelerator=accelerator, **fields)
    return baselines.path_for(ROOT, case, profile)


def accuracy(names: list[str]) -> Path:
    fields = ("workload", "engine", "precision")
    return accuracy_baselines.path_for(ROOT, **dict(zip(fields, names[:3], strict=True)))


@given(names=st.lists(NAMES, min_size=6, max_size=6), hostile=HOSTILE)
def test_no_name_leads_out_of_its_folder(names: list[str], hostile: str) -> None:
    """Names of performance and accuracy baselines, scores, calibrations, runs, and sessions."""
    places: list[tuple[Callable[[list[str]], Path], int]] = [
        (performance, 4),
        (accuracy, 3),
        (lambda names: accuracy_baselines.scores_path(accuracy(names)), 3),
        (lambda names: calibration.path_for(ROOT, names[0]), 2),
        (lambda names: calibration.file_in(ROOT, names[0]), 1),
    ]
    for function, depth in places:
        try:
            path = function(names)
        except BaselineError:
            continue
        assert path.resolve().is_relative_to(ROOT)
        assert len(path.relative_to(ROOT).parts) == depth
        assert path.name.isprintable()
    with pytest.raises(BaselineError, match="cannot be part of a file's path"):
        new_folder(Path("/nowhere"), hostile)


def test_plain_names_are_taken() -> None:
    names = ["8xH100", "official", "llama2-70b-99.9", "Server", "trtllm-tp1", "fp8"]

    expected = "8xH100/official/llama2-70b-99.9/Server.trtllm-tp1.fp8.json"
    assert performance(names) == ROOT / expected
