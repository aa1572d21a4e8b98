"""run/worker/provenance.py: inputs that differ have other digests, equal ones the same."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.run.worker import provenance
from pytest_mlperf.run.worker.provenance import DIGESTED_SAMPLES, imported_files, input_digests
from tests.run.harness import ROOT, RunningWorker, spec


@dataclass
class Boxes:
    image: Any
    frame: tuple[int, ...] = (1, 2)


class Given:
    """A data set whose `input()` a test defines."""

    digest = "the same"

    def __init__(self, made: Callable[[int], Any], samples: int = 20) -> None:
        self._made, self._samples = made, samples

    def __len__(self) -> int:
        return self._samples

    def input(self, index: int) -> Any:
        return self._made(index)

    def reference(self, index: int) -> None:
        raise AssertionError(index)


def negated(at: int, index: int) -> int:
    return -index if index == at else index


def digests(value: Any) -> dict[str, str]:
    return input_digests(Given(lambda _: value), range(20))[0]


PIXELS = np.arange(12, dtype=np.float32).reshape(3, 4)

APART: list[Any] = [
    *(PIXELS, -PIXELS, PIXELS.astype(np.float64), PIXELS.reshape(4, 3), PIXELS.T, PIXELS[:2]),
    *(PIXELS.view(np.int32), PIXELS.astype(">f4"), np.array(["a", None], object)),
    *(np.float32(1), 1, 1.0, True, None, 1 + 0j, "1", b"1", "", b"", [], {}),
    *("ab", ["a", "b"], [["a"], "b"], ["ab"], [1, 23], [12, 3], [-1, 23], {1, 2}, {3, 2}),
    *({"a": 1}, {"a": 2}, {"b": 1}, {"1": 1}, {1: 1}, {"a": {"a": 1}}, {"a": PIXELS}),
    *(Boxes(PIXELS), Boxes(-PIXELS), Boxes(PIXELS, (2, 1))),
    *({"role": "user", "content": "Say a."}, {"role": "user", "content": "Say  a."}),
    *("/\0", "/a" * 3000, "/b"),
]
"""Values of which no two are the same for an engine."""

ALIKE: list[tuple[Any, Any]] = [
    (PIXELS, PIXELS.copy(order="F")),
    (PIXELS, np.repeat(PIXELS, 2, axis=1)[:, ::2]),
    ([1, 2], (1, 2)),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"x", "y", "z"}, {"z", "y", "x"}),
]


def test_inputs_have_one_digest_exactly_where_they_are_equal() -> None:
    digests_of_inputs = [digests(value) for value in APART]

    assert all(one.keys() == {"inputs.first", "inputs.first_16"} for one in digests_of_inputs)
    assert len({one["inputs.first"] for one in digests_of_inputs}) == len(APART)
    assert [pair for pair in ALIKE if digests(pair[0]) != digests(pair[1])] == []


def test_a_sample_after_the_first_counts_and_one_behind_the_last_does_not() -> None:
    """If there are fewer samples than are digested, all count."""
    whole = input_digests(Given(lambda index: index), range(20))[0]

    for changed, samples in ((1, 20), (DIGESTED_SAMPLES - 1, 20), (2, 3)):
        original = input_digests(Given(lambda index: index), range(samples))[0]
        changed_inputs = input_digests(Given(partial(negated, changed)), range(samples))
        assert changed_inputs[0]["inputs.first"] == original["inputs.first"]
        assert changed_inputs[0]["inputs.first_16"] != original["inputs.first_16"]
    assert (
        input_digests(Given(lambda index: index if index < DIGESTED_SAMPLES else None), range(20))[
            0
        ]
        == whole
    )


def test_a_file_is_its_name_wherever_it_lies(tmp_path: Path) -> None:
    """Its content is a part of the data set's own digest."""
    a, b, other = (tmp_path / name for name in ("a/0.png", "b/0.png", "b/1.png"))
    for file in (a, b, other):
        file.parent.mkdir(exist_ok=True)
        file.touch()

    assert digests(str(a)) == digests(a) == digests(str(b)) != digests(str(other))
    assert digests({"path": a}) == digests({"path": str(b)}) != digests({"path": other})


def test_inputs_that_cannot_be_digested_are_unknown_and_still_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (
        object(),
        [object()],
        iter([1]),
        {"a": object()},
        cycle,
        Given,
        np.array([Given]),
    ):
        facts, seconds = input_digests(Given({}.fromkeys(range(20), value).__getitem__), range(20))
        assert facts == {}
        assert seconds is not None
    assert input_digests(Given(lambda index: 1 // (index - 3)), range(20)) == ({}, None)
    assert input_digests(Given(lambda index: index), range(0)) == ({}, None)

    monkeypatch.setattr(provenance, "MAX_DIGEST_SECONDS", 0.0)
    assert input_digests(Given(lambda _: 1), range(20))[0].keys() == {"inputs.first"}
    assert input_digests(Given(lambda _: 1), range(1))[0].keys() == {
        "inputs.first",
        "inputs.first_16",
    }


def test_the_time_of_an_input_leaves_out_the_first_call_that_opens_and_imports() -> None:
    def made(index: int) -> int:
        time.sleep(0.2 if index == 0 else 0.002)
        return index

    seconds = input_digests(Given(made), range(5))[1]
    alone = input_digests(Given(made), range(1))[1]

    assert seconds is not None
    assert alone is not None
    assert 0.002 <= seconds < 0.1 < 0.2 <= alone


@pytest.mark.process
def test_digests_are_the_same_in_every_process() -> None:
    code = (
        "from tests.run.test_provenance import *\n"
        "print([*map(digests, [{'x', 'y', 'z'}, {'b': PIXELS, 'a': {'c', 'd'}}, Boxes(PIXELS)])])"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(made) == 1
    assert b"inputs.first_16" in made.pop()


@pytest.mark.process
def test_a_worker_reports_inputs_their_time_and_its_imports(tmp_path: Path) -> None:
    slow = "tests.run.prompts_of_ones_own:Slow"
    with RunningWorker(spec(tmp_path, dataset=slow)) as worker:
        loaded = worker.wait_for("loaded")

    assert loaded["dataset"]["inputs"].keys() == {"inputs.first", "inputs.first_16"}
    assert loaded["dataset"]["input_s"] >= 0.001
    assert str(ROOT / "tests/run/prompts_of_ones_own.py") in loaded["files"]
    assert not [file for file in loaded["files"] if "site-packages" in file]
    assert __file__ in imported_files()
    assert np.__file__ not in imported_files()
