"""A JSON list of objects, read one by one: the same objects as json.loads gives, or one error."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.files import json_records
from pytest_mlperf.adapters.datasets.files.json_records import read_records
from pytest_mlperf.core.errors import RunError
from tests.adapters.datasets.refusals import not_refused

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
records = st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=5)


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "records.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    expected=records,
    indent=st.sampled_from([None, 0, 4]),
    ascii_only=st.booleans(),
    space=st.text(" \t\r\n", max_size=3),
    chunk=st.integers(1, 40),
)
def test_any_list_reads_as_json_reads_it_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: list[dict[str, Any]],
    indent: int | None,
    ascii_only: bool,
    space: str,
    chunk: int,
) -> None:
    monkeypatch.setattr(json_records, "READ_CHARACTERS", chunk)
    try:
        text = json.dumps(expected, indent=indent, ensure_ascii=ascii_only)
        path = write(tmp_path, f"{space}{text}{space}")
    except UnicodeEncodeError:  # half of a surrogate pair is not UTF-8
        path = write(tmp_path, f"{space}{json.dumps(expected, indent=indent)}{space}")

    assert list(read_records(path)) == expected


def test_records_beyond_the_requested_ones_are_not_read(tmp_path: Path) -> None:
    """The first records are there although the file is damaged further on; a mark is none."""
    records = read_records(write(tmp_path, '[{"a": 1}, {"a": 2}, nonsense'))

    assert [next(records), next(records)] == [{"a": 1}, {"a": 2}]
    assert list(read_records(write(tmp_path, b'\xef\xbb\xbf[{"a": 1}]'))) == [{"a": 1}]


def test_a_file_that_is_none_is_one_error_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record from 0, the line from 1; wherever a chunk of the file ends."""
    rows: list[Any] = [
        ("", "it is not a JSON list of objects"),
        ("  \n", "it is not a JSON list of objects"),
        ('{"a": 1}', "it is not a JSON list of objects"),
        ('{"a": 1}\n{"a": 2}', "it is not a JSON list of objects"),
        ("[", "record 0, line 1: Expecting value"),
        ("[\n\n", "record 0, line 3: Expecting value"),
        ("[1]", "record 0 is of type int, not an object"),
        ('[{"a": 1}, [2]]', "record 1 is of type list, not an object"),
        ('[\n{"a": 1},\n{"a": 2\n', "record 1, line 4: Expecting ',' delimiter"),
        ('[{"a": 1},\n{"a": "2', "record 1, line 2: Unterminated string starting at"),
        ('[{"a": 1},\n{"a" "2"}]', "record 1, line 2: Expecting ':' delimiter"),
        ('[{"a": 1},]', "record 1, line 1: Expecting value"),
        ('[{"a": 1}', "after record 0 there is the end of the file, not ',' or ']'"),
        ('[{"a": 1} {"a": 2}]', "after record 0 there is '{', not ',' or ']'"),
        ('[{"a": 1}] x', "the list is followed by 'x' instead"),
        ("[] []", "the list is followed by '[' instead"),
        ('[{"a": ' + "[" * 100_000, "record 0, line 1: "),
        (b'[{"a": "\xff"}]', "it is not UTF-8 (invalid start byte)"),
    ]

    def read(content: str | bytes) -> None:
        list(read_records(write(tmp_path, content)))

    path = tmp_path / "records.json"
    advice = ["the file is damaged, incomplete or the wrong one: get it from its source again, or "]
    for content, part in rows:
        for chunk in (1000, 2**20) if len(content) > 1000 else (1, 7, 2**20):
            monkeypatch.setattr(json_records, "READ_CHARACTERS", chunk)
            row = (content, f"{path}: {part}")
            assert not_refused(RunError, [row], read, start=path, advice=advice) == []


def test_an_object_without_an_end_is_not_read_to_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wrong quotation mark must not bring a whole file into memory."""
    monkeypatch.setattr(json_records, "READ_CHARACTERS", 2**10)
    monkeypatch.setattr(json_records, "MAX_OBJECT_CHARACTERS", 2**14)
    path = write(tmp_path, '[{"a": "' + "x" * 2**23)

    tracemalloc.start()
    with pytest.raises(RunError, match="record 0, line 1: Unterminated string"):
        list(read_records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2**20
