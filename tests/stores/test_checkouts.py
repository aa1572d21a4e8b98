"""Baselines as git may leave them: pointers of Git LFS, and line ends of Windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import BaselineError, MlperfError, SuiteError
from pytest_mlperf.stores import accuracy_baselines, baselines, calibration
from pytest_mlperf.stores.foreign import POINTER
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.suite.load import load_suite
from tests.stores.test_accuracy_baselines import BASELINE as SCORED
from tests.stores.test_accuracy_baselines import save as save_scores
from tests.stores.test_baselines import BASELINE

POINTED = POINTER + b"\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
SENTENCE = "is a Git LFS pointer, not the file itself; run: git lfs pull"
SCORES = {"rouge1": [1.0, 2.0, 3.0]}


def saved(folder: Path) -> Path:
    path = folder / "a.json"
    save_scores(path, SCORED, SCORES)
    return path


@pytest.mark.parametrize(
    "read",
    [
        baselines.load,
        accuracy_baselines.load,
        accuracy_baselines.load_outputs,
        lambda path: baselines.update(path, lambda _: BASELINE),
        lambda path: save_scores(path, SCORED, SCORES),
        lambda path: calibration.load(path, "cpu"),
    ],
)
def test_a_baseline_that_is_a_pointer_is_named_and_kept(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(POINTED)
    with pytest.raises(BaselineError) as caught:
        read(path)
    assert str(caught.value) == f"{path} {SENTENCE}"
    assert path.read_bytes() == POINTED


def test_scores_that_are_a_pointer_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    scores = accuracy_baselines.scores_path(path)
    scores.write_bytes(POINTED)
    for read in (accuracy_baselines.load, accuracy_baselines.load_outputs):
        with pytest.raises(BaselineError) as caught:
            read(path)
        assert str(caught.value) == f"{scores} {SENTENCE}"


def test_other_files_that_are_pointers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.mlperf.toml"
    path.write_bytes(POINTED)
    for read, error in ((read_results, MlperfError), (load_suite, SuiteError)):
        with pytest.raises(error, match=SENTENCE.removeprefix("is ")):
            read(path)


def test_a_file_that_only_begins_like_a_pointer_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(POINTED + bytes(2000))
    with pytest.raises(BaselineError, match="is not JSON"):
        baselines.load(path)


def test_line_ends_of_windows_make_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    baselines.save(path, BASELINE)
    scored = saved(tmp_path)
    expected = baselines.load(path), accuracy_baselines.load(scored)
    for file in (path, scored):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert (baselines.load(path), accuracy_baselines.load(scored)) == expected

    baselines.update(path, lambda old: replace(old or BASELINE, round="v5.0"))
    assert replace(baselines.load(path) or BASELINE, round="v4.1") == expected[0]
    assert b"\r" not in path.read_bytes()  # git writes the line ends again
