"""Data set `streaming` reads MLPerf's files of DLRM v3 as its reference does, in order of time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.streaming import StreamingDataset
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError, UnavailableError
from tests.adapters.datasets.refusals import not_refused

USERS = [
    # What came before; steps 0 and 1; one for evaluation; steps 2 and 3: candidates, history.
    '"1,2","3.0,4.0","10,11","5.0,1.0",3,2.0,12,2.5,,,,,9,9.0,99,9.0,"20,21","3.5,3.4",30,4.5,'
    '"22,23","4.0,1.0","31,32","2.0,1.5"\r\n',
    "1,3.0,10,5.0,,,,,3,2.0,13,1.0,9,9.0,99,9.0,,,,,24,5.0,33,3.0\r\n",
    "5,1.0,14,1.0,,,,,,,,,9,9.0,99,9.0,25,3.5,34,2.0,,,,\r\n",
]
OPTIONS: dict[str, Any] = {"steps": 4, "first_step": 2}


def written(folder: Path, folder_name: str = "sampled_data") -> Path:
    """Write a data set of three users, as Python's csv writes it."""
    data = folder / folder_name
    data.mkdir(parents=True, exist_ok=True)
    starts = np.cumsum([0, *map(len, USERS)])[:-1]
    (data / "0.csv").write_bytes("".join(USERS).encode())
    (data / "offset.csv").write_text(f'"{",".join(map(str, starts))}"\n', "utf-8")
    (data / "requests_per_ts.csv").write_bytes(b'0\r\n1\r\n"0,2"\r\n"0,1"\r\n')
    (data / "requests_per_ts_offset.csv").write_text('"0,3,6,13"\n', "utf-8")
    (data / "users_cumsum_per_ts.csv").write_text("1\n1\n2\n2\n", "utf-8")
    return folder


def test_requests_come_in_the_order_of_their_time(tmp_path: Path) -> None:
    """The first of each step and of each list are taken, as in MLPerf's reference scores."""
    data = StreamingDataset(path=str(written(tmp_path)), **OPTIONS)

    samples = [data.input(index) for index in range(len(data))]

    request_ids = [(each["step"], each["query"], each["user"]) for each in samples]
    assert request_ids == [(0, 0, 0), (0, 1, 2), (1, 0, 0), (1, 1, 1)]
    assert StreamingDataset.in_order
    files = str(written(tmp_path))
    half = StreamingDataset(path=files, share=0.5, **OPTIONS)
    short = StreamingDataset(path=files, max_history=2, max_candidates=1, **OPTIONS)
    assert [half.input(n)["query"] for n in range(len(half))] == [0, 0]
    assert short.input(0)["history"].tolist() == [10, 11]
    assert short.input(0)["candidates"].tolist() == [20]
    assert short.reference(0)["labels"].tolist() == [1]
    assert len({data.digest for data in (half, short)}) == 2


def test_the_history_holds_earlier_requests_and_no_evaluation(tmp_path: Path) -> None:
    """A step's own actions are not there yet; a user who did nothing in a step has no gap."""
    data = StreamingDataset(path=str(written(tmp_path, ".")), **OPTIONS)

    histories = [data.input(index)["history"].tolist() for index in range(4)]
    last = data.input(2)

    assert histories == [[10, 11, 12], [14], [10, 11, 12, 30], [10, 13]]
    assert last["ratings"].tolist() == [5.0, 1.0, 2.5, 4.5]
    assert (last["candidates"].tolist(), last["labels"].tolist()) == ([22, 23], [1, 0])
    assert data.reference(0)["labels"].tolist() == [1, 0]  # liked from 3.5 on
    assert (data.reference(3)["step"], data.reference(3)["query"]) == (1, 1)


def test_users_of_several_files_are_found_by_their_numbers(tmp_path: Path) -> None:
    data = written(tmp_path) / "sampled_data"
    (data / "0.csv").write_bytes(USERS[0].encode())
    (data / "1.csv").write_bytes(USERS[1].encode())
    (data / "offset.csv").write_text("0\n0\n", "utf-8")
    (data / "requests_per_ts.csv").write_bytes(b'0\r\n1\r\n0\r\n"0,1"\r\n')
    (data / "requests_per_ts_offset.csv").write_text('"[0, 3, 6, 9]"\n', "utf-8")
    (data / "users_cumsum_per_ts.csv").write_text('"1,1"\n"0,1"\n"1,1"\n"1,2"\n', "utf-8")

    dataset = StreamingDataset(path=str(tmp_path), **OPTIONS)

    assert [dataset.input(n)["candidates"].tolist() for n in range(3)] == [[20, 21], [22, 23], [24]]


def edit(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "sampled_data" / name
        assert old in file.read_bytes()
        file.write_bytes(file.read_bytes().replace(old, new, 1))

    return change


def test_damage_is_one_error(tmp_path: Path) -> None:
    rows: list[Any] = [
        (edit("0.csv", b"3.5,3.4", b"3.5,x"), "user 0: time step 2: could not convert"),
        (edit("0.csv", b"3.5,3.4", b"3.5"), "user 0: time step 2 has 2 candidates with 1 ratings"),
        (edit("0.csv", b"3.5,3.4", b"3.5,nan"), "but needs a candidate, and a finite rating"),
        (edit("0.csv", b"20,21", b"20,-1"), "has a negative item number"),
        (edit("0.csv", b',"31,32","2.0,1.5"', b""), "22 fields, but steps = 4 needs 24"),
        (edit("0.csv", b'"20,21"', b"2020,21"), "the row has 25 fields, but steps = 4 needs 24"),
        (edit("0.csv", USERS[2].encode(), b""), "no row begins at byte"),
        (edit("offset.csv", b'"0,', b'"1,'), "no row begins at byte 1"),
        (edit("offset.csv", b'"0,', b'"-5,'), "is not a list of numbers"),
        (edit("offset.csv", b'"0,', b'"1e400,'), "is not a list of numbers"),
        (edit("requests_per_ts.csv", b'"0,2"', b'"0,7"'), "time step 2 has user 7, who is not in"),
        (edit("requests_per_ts.csv", b'"0,2"', b'"a,2"'), "is not a list of numbers"),
        (edit("users_cumsum_per_ts.csv", b"2", b"3"), "time step 2 needs .* that end with .3."),
        (edit("users_cumsum_per_ts.csv", b"1\n", b""), "users_cumsum_per_ts.csv has 3"),
    ]

    def read(change: Callable[[Path], None]) -> None:
        change(written(tmp_path))
        StreamingDataset(path=str(tmp_path), **OPTIONS)

    assert not_refused(RunError, rows, read) == []


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    rows: list[Any] = [
        ({"share": 0}, "share = 0 is not above 0"),
        ({"share": True}, "share = True is not"),
        ({"first_step": 4}, "first_step = 4 is not a whole number from 0 to"),
        ({"steps": "4"}, "steps = '4' is not"),
        ({"count": 5}, "count = 5, but there are 4 requests"),
        ({"max_history": 0}, "max_history = 0 is not a number of actions"),
    ]
    path = str(written(tmp_path))

    def read(options: dict[str, Any]) -> None:
        StreamingDataset(path=path, **{**OPTIONS, **options})

    assert not_refused(SuiteError, rows, read) == []
    with pytest.raises(RunError, match="no request is left with share = "):
        read({"share": 1e-9})


def test_missing_files_are_all_named(tmp_path: Path) -> None:
    (written(tmp_path) / "sampled_data" / "0.csv").unlink()

    with pytest.raises(UnavailableError, match=r"0\.csv of the streaming data not found"):
        StreamingDataset.look(path=str(tmp_path), **OPTIONS)
    with pytest.raises(MlperfError, match=r"offset\.csv, requests_per_ts\.csv"):
        StreamingDataset.look(path=str(tmp_path / "nowhere"), **OPTIONS)
