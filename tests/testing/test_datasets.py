"""Test that `check_dataset` passes a correct data set, and detects each defect."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError, RunError, SuiteError, UnavailableError
from pytest_mlperf.builtin.synthetic import SyntheticDataset
from pytest_mlperf.testing import check_dataset

COUNTER = itertools.count()


class Right:
    """Numbers of a JSON file."""

    def __init__(self, path: str, *, count: int | None = None) -> None:
        self.look(path)
        self.numbers = json.loads(Path(path).read_text())[:count]

    @classmethod
    def look(cls, path: str, *, count: int | None = None) -> None:
        if not Path(path).is_file():
            raise UnavailableError(f"{path} is not there: write it")

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self.numbers).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.numbers)

    def input(self, index: int) -> Any:
        return self.numbers[index]

    def reference(self, index: int) -> Any:
        return self.numbers[index] % 2


def changed(**members: Any) -> Any:
    """Return a data set with other members."""
    return type("Changed", (Right,), members)


class InTurn(Right):
    """Gives samples in the order in which they are asked for."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.turn = itertools.count()

    def input(self, index: int) -> Any:
        return next(self.turn)


def by_chance(*_: object) -> int:
    return next(COUNTER)


ADDRESS = changed(digest=property(lambda self: str(id(self.numbers))))


class Crashes(Right):
    look = None  # type: ignore[assignment]

    def __init__(self, path: str) -> None:
        self.numbers = json.loads(Path(path).read_text())


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps(list(range(40))))
    return str(file)


def test_a_right_data_set_passes_and_comes_back(path: str) -> None:
    """A list is a data set."""
    assert len(check_dataset(Right, options={"path": path, "count": 5})) == 5

    def words() -> list[str]:
        return ["level", "noon"]

    assert len(check_dataset(words)) == 2


@pytest.mark.process
def test_a_registered_one_is_built_in_another_process_too() -> None:
    assert len(check_dataset(SyntheticDataset, options={"samples": 3})) == 3


def test_a_wrong_data_set_is_found(path: str) -> None:
    rows: list[Any] = [
        (ADDRESS, AssertionError, "its digest is .+ when it is built again: make it of the"),
        (changed(digest=None), RunError, "the data set's digest is None; it must be a text"),
        (
            changed(__len__=lambda _: 0),
            RunError,
            "the data set is empty; at least one sample is needed",
        ),
        (InTurn, AssertionError, r"sample \d+ differs when it is read again"),
        (
            changed(reference=by_chance),
            AssertionError,
            r"sample \d+ differs when it is read again",
        ),
        (changed(group=lambda *_: 1.5), SuiteError, r"group of sample 0 is 1\.5"),
        (
            changed(output_tokens=lambda *_: -1),
            RunError,
            "sample 0 of the data set has output_tokens -1; needed is a whole number of at least 1",
        ),
        (
            changed(output_tokens=by_chance),
            AssertionError,
            r"output_tokens\(\) returns another value when it is called again",
        ),
        (
            changed(pause_s=lambda _, i: -float(i) or None),
            RunError,
            r"pause_s of sample 1 is -1\.0; it must be s",
        ),
        (
            changed(sizes=lambda *_: {"tokens": float("nan")}),
            SuiteError,
            "sizes are {'tokens': nan}",
        ),
        (
            changed(look=lambda *_, **__: None),
            AssertionError,
            r"look\(\) does not report that .+ is missing: raise Un",
        ),
        (Crashes, AssertionError, "FileNotFoundError|NotADirectoryError"),
    ]
    for dataset, error, problem in rows:
        assert issubclass(error, AssertionError | MlperfError)
        with pytest.raises(error, match=problem):
            check_dataset(dataset, options={"path": path})
