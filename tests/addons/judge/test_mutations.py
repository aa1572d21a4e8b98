"""A file with any value replaced by another is judged, or refused in one sentence."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge import accepted, report
from pytest_mlperf.addons.judge.judging import compare
from pytest_mlperf.addons.judge.results import results_of
from pytest_mlperf.addons.judge.rows import Settings
from pytest_mlperf.extension import read_results, write_results
from tests.addons.judge.files import DATA, read

FILES = sorted(file.name for file in DATA.iterdir() if file.suffix in {".json", ".jsonl"})

VALUES: tuple[Any, ...] = (
    *(None, "x", [], {}, -1, 0, float("nan"), float("inf"), 1e308, True, "1", [1, 2], {"a": 1}),
    *(10**400, "é\x1b[31m", [None]),
)

MUTATIONS = 25


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values; of a list, those of its first items."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 3)):
            yield from paths(value[index], (*path, index))


def mutated(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return content


@pytest.mark.parametrize("name", FILES)
def test_any_value_may_be_another(name: str, tmp_path: Path) -> None:
    text = (DATA / name).read_text("utf-8")
    lines = name.endswith(".jsonl")
    content = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    choice = random.Random(name)
    all_paths = list(paths(content))
    judged, refusals = 0, list[str]()
    for _ in range(MUTATIONS):
        other = mutated(content, choice.choice(all_paths), choice.choice(VALUES))
        parts = other if lines and isinstance(other, list) else [other]
        file = tmp_path / name
        file.write_text("\n".join(map(json.dumps, parts)), "utf-8")
        try:
            candidate = read([file])
            result = compare(read([DATA / name]).runs, candidate.runs, Settings())
            session = results_of(result, ("a", "b"), set(report.FAILING))
            write_results(tmp_path / "r.json", session)
            assert read_results(tmp_path / "r.json") == session
            assert report.lines(result, ("a", "b"), 80)
            baseline = accepted.baseline_of("x", candidate.runs, ())
            accepted.DOCUMENT.save(tmp_path / "x.json", baseline)
            assert accepted.DOCUMENT.load(tmp_path / "x.json") == baseline
        except MlperfError as error:
            refusals.append(str(error))
        else:
            judged += 1

    assert [text for text in refusals if "\n" in text] == []
    assert judged > MUTATIONS / 3
