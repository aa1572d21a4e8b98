from __future__ import annotations

import errno
import json
import os
import tempfile
from dataclasses import replace
from difflib import unified_diff
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import (
    Baseline,
    BaselineRun,
    HistoryEntry,
    Property,
    Record,
    with_record,
)
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.judge.inputs import SessionNoise
from pytest_mlperf.stores import baselines, documents
from pytest_mlperf.stores.baselines import load, save, update
from tests.core.made import present
from tests.stores.killed import exit_codes, started
from tests.stores.spoilt import changed

RUN = BaselineRun(
    metrics={"throughput": 1234.5, "latency_p50": 0.0123},
    within_se={"throughput": 0.0056},
    session="2026-11-20a",
    started="2026-11-20T10:00:00Z",
    samples=24_576,
    duration_s=60.25,
    commit=None,
)
RECORD = Record(
    identity={"name": "H200", "memory_gb": 141.0, "mig": False, "gpus": 1, "cooling": None},
    target_qps=13.5,
    qps_source="probe",
    fingerprint={"engine": "1.2.0"},
    runs=(RUN, RUN),
    minimum_detectable_change={"throughput": 0.021},
    history=(
        HistoryEntry(
            date="2026-11-20",
            commit="1a2b3c4",
            reason="first, für Zoë",
            action="record",
            runs=2,
            old={},
            new={"throughput": 1234.5},
        ),
    ),
)
BASELINE = Baseline(
    round="v4.1",
    profile="quick",
    workload="resnet50",
    scenario=Scenario.OFFLINE,
    engine="ort",
    precision="fp32",
    accelerator="H200",
    records=(RECORD,),
)


EMPTY = replace(BASELINE, records=())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / "Offline.ort.fp32.json"


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def document(baseline: Baseline = BASELINE) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder, "b.json"), baseline)
        return json.loads(Path(folder, "b.json").read_text(encoding="utf-8"))


def refusal(path: Path) -> str:
    with pytest.raises(BaselineError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=8)
properties: st.SearchStrategy[Property] = st.one_of(
    st.text(max_size=8), st.integers(), finite, st.booleans(), st.none()
)
runs = st.builds(
    BaselineRun,
    metrics=st.dictionaries(names, positive, max_size=3),
    within_se=st.dictionaries(names, st.floats(0, 1), max_size=3),
    duration_s=finite,
)
entries = st.builds(
    HistoryEntry,
    old=st.dictionaries(names, finite, max_size=2),
    new=st.dictionaries(names, finite, max_size=2),
)
noises = st.builds(SessionNoise, ratio=st.floats(0, 1e6), df=st.floats(1e-3, 1e6))
records = st.builds(
    Record,
    identity=st.dictionaries(names, properties, max_size=4),
    target_qps=st.none() | finite,
    fingerprint=st.dictionaries(names, names, max_size=3),
    runs=st.lists(runs, min_size=1, max_size=3).map(tuple),
    minimum_detectable_change=st.dictionaries(names, finite, max_size=2),
    history=st.lists(entries, max_size=2).map(tuple),
    session_noise=st.dictionaries(names, noises, max_size=2),
)


def identity_of(record: Record) -> frozenset[tuple[str, Property]]:
    return frozenset((k, v) for k, v in record.identity.items() if v is not None)


def types(baseline: Baseline) -> list[dict[str, type]]:
    return [{name: type(x) for name, x in each.identity.items()} for each in baseline.records]


@settings(max_examples=25)
@given(st.builds(Baseline, records=st.lists(records, max_size=3, unique_by=identity_of).map(tuple)))
def test_a_saved_baseline_is_loaded_exactly(baseline: Baseline) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "b.json")
        save(path, baseline)
        first = path.read_bytes()
        loaded = present(load(path))
        assert loaded == baseline
        assert types(loaded) == types(baseline)  # 1 equals 1.0 and True
        save(path, loaded)

        assert path.read_bytes() == first


def test_the_file_has_sorted_keys_and_one_changed_value_is_one_changed_line(path: Path) -> None:
    save(path, BASELINE)
    text = path.read_text(encoding="utf-8")
    faster = replace(RUN, metrics={**RUN.metrics, "throughput": 1300.0})
    save(path, replace(BASELINE, records=(replace(RECORD, runs=(RUN, faster)),)))
    sides = text.splitlines(), path.read_text(encoding="utf-8").splitlines()

    changed = [line for line in unified_diff(*sides, n=0) if line[1:].strip()[:1] == '"']
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert "für Zoë" in text
    assert [line.replace(" ", "") for line in changed] == [
        '-"throughput":1234.5',
        '+"throughput":1300.0',
    ]


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    """A missing file is an empty baseline."""
    assert load(path) is None
    short = replace(BASELINE, records=(replace(RECORD, runs=(RUN,), history=()),))
    save(path, short)
    whole = path.read_bytes()

    assert load(write(path, whole[:-1])) == short
    for length in (*range(0, len(whole) - 2, 7), len(whole) - 2):
        write(path, whole[:length])
        with pytest.raises(BaselineError):
            load(path)


NO_BASELINES = [
    (b"", "is not JSON: line 1, column 1: Expecting value"),
    (b"<<<<<<< HEAD\n{}", "is not JSON: line 1, column 1: Expecting value"),
    (b'{"schema": 1,\xff}', "is not text in UTF-8 (byte 14)"),
    (b"\x7fELF\x02\x01\x01\x00", "is not JSON: line 1, column 1: Expecting value"),
    (b"\x89PNG\r\n\x1a\n", "is not text in UTF-8 (byte 1)"),
    (b"[1, 2]", "must hold a JSON object, not list"),
    (b"null", "must hold a JSON object, not NoneType"),
    (b"NaN", "must hold a JSON object, not float"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"schema": 1, "schema": 1}', "key 'schema' occurs twice in one object"),
    (b"{}", "schema is None; must be a whole number up to 1"),
    (b'{"schema": "1"}', "schema is '1'; must be a whole number up to 1"),
    (b'{"schema": true}', "schema is True; must be a whole number up to 1"),
    (b'{"schema": 0}', "schema 0 is unknown; this release reads up to 1"),
    (b'{"schema": -7}', "schema -7 is unknown; this release reads up to 1"),
]


def test_an_invalid_baseline_file_is_refused_with_its_kind(path: Path) -> None:
    messages = [(refusal(write(path, data)), wrong) for data, wrong in NO_BASELINES]

    assert [(message, wrong) for message, wrong in messages if wrong not in message] == []
    assert all("git checkout -- " in message for message, _ in messages)
    assert refusal(write(path, b'{"schema": 2, "anything": []}')) == (
        f"{path}: written by a newer pytest-mlperf (schema 2; this one reads up to 1): "
        "upgrade pytest-mlperf"
    )
    cut = path.with_name("two words.json")
    assert refusal(write(cut, b'{\n "schema": 1,\n "records": [\n')) == (
        f"{cut}: is not JSON: line 4, column 1: Expecting value. Restore it (git checkout -- "
        f"'{cut}'), or delete it and record again: --mlperf-update=missing"
    )
    both = b'{\n<<<<<<< HEAD\n "schema": 1\n=======\n "schema": 1\n>>>>>>> faster kernels\n}\n'
    assert refusal(write(cut, both)) == (
        f"{cut}: holds a merge conflict of 'HEAD' and 'faster kernels': line 2. Keep one side: git "
        f"checkout --ours '{cut}' ('HEAD') or --theirs ('faster kernels'); then git add '{cut}'"
    )


def test_an_older_schema_is_brought_up_step_by_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = document()
    old["schema"], old["version"] = -1, old.pop("round")

    def from_minus_one(held: dict[str, Any]) -> dict[str, Any]:
        return {**held, "version": held["version"].upper()}

    def from_zero(held: dict[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in held.items() if key != "version"}
        return {**rest, "round": held["version"].lower()}

    monkeypatch.setattr(
        baselines.BASELINE_DOCUMENT, "migrations", {-1: from_minus_one, 0: from_zero}
    )

    assert load(write(path, json.dumps(old).encode())) == BASELINE


NAN, INFINITE = float("nan"), float("inf")

PLACE = "records[0].runs[0]"
WRONG_VALUES: list[tuple[str, object, str]] = [
    ("runs.0.samples", "many", f"{PLACE}.samples: must be a valid integer, not "),
    ("runs.0.samples", 1.5, f"{PLACE}.samples: must be a valid integer, not "),
    ("runs.0.duration_s", NAN, "duration_s: must be a finite number, not nan"),
    ("target_qps", INFINITE, "records[0].target_qps: must be a finite number, not inf"),
    ("runs.0.metrics.throughput", -INFINITE, f"{PLACE}.metrics.throughput: must be a finite numb"),
    ("runs.0.metrics.throughput", 0.0, f"{PLACE}: metric 'throughput' is 0.0; must be positive "),
    ("runs.0.metrics.throughput", "1", "throughput: must be a valid number, not '1'"),
    ("session_noise", {"x": {"ratio": NAN, "df": 3.0}}, "session_noise.x.ratio: must be a finite "),
    (
        "session_noise",
        {"x": {"ratio": 1e300, "df": 3.0}},
        "session_noise.x: ratio is 1e+300; must ",
    ),
    (
        "session_noise",
        {"x": {"ratio": 1.0, "df": 1e300}},
        "session_noise.x: df is 1e+300; must be ",
    ),
    ("identity.gpus", NAN, "identity.gpus: must be a valid string, a valid integer, a finite numb"),
    ("history.0.action", "guess", "history[0].action: must be 'record', 'append' or 'replace'"),
    ("surprise", 1, "records[0].surprise: is not a key of the baseline"),
]
"""Place in the first record, value, and what is said of it."""


def test_a_wrong_value_is_refused_with_its_place(path: Path) -> None:
    whole = document()
    texts = [
        (json.dumps(changed(document(), f"records.0.{place}", value)), wrong)
        for place, value, wrong in WRONG_VALUES
    ]
    texts += [
        (json.dumps({**whole, "surprise": 1}), ": surprise: is not a key of the baseline"),
        (json.dumps({**whole, "records": {}}), ": records: must be a valid "),
        (json.dumps({**whole, "round": None}), ": round: must be a valid string, not None"),
        (json.dumps(whole).replace("13.5", "1e999"), "target_qps: must be a finite number"),
    ]
    for key in ("records", "round"):
        rest = {name: value for name, value in whole.items() if name != key}
        texts.append((json.dumps(rest), f": {key}: is missing."))

    messages = [(refusal(write(path, text.encode())), wrong) for text, wrong in texts]

    assert [(message, wrong) for message, wrong in messages if wrong not in message] == []
    assert all("git checkout -- " in message for message, _ in messages)


def test_a_folder_or_a_file_in_the_place_of_the_other_is_reported(
    path: Path, tmp_path: Path
) -> None:
    path.mkdir(parents=True)
    assert "as a baseline file: it is a folder; move it away" in refusal(path)

    below = write(tmp_path / "file", b"") / "b.json"
    assert "cannot be read: Not a directory" in refusal(below)
    with pytest.raises(BaselineError, match="cannot be written"):
        save(below, BASELINE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_missing_permissions_are_reported(path: Path) -> None:
    save(path, BASELINE)
    path.chmod(0)
    path.parent.chmod(0o500)
    try:
        assert "cannot be read: Permission denied" in refusal(path)
        with pytest.raises(BaselineError, match="cannot be written: Permission denied"):
            save(path, BASELINE)
    finally:
        path.parent.chmod(0o700)


def test_a_write_that_fails_leaves_the_old_baseline_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, BASELINE)
    old = path.read_bytes()
    for number, step in product([errno.ENOSPC, errno.EROFS, errno.EIO], ["fsync", "replace"]):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, Mock(side_effect=OSError(number, os.strerror(number))))
            with pytest.raises(BaselineError) as error:
                save(path, replace(BASELINE, records=()))

        assert f"{path}: cannot be written: {os.strerror(number)}" in str(error.value)
        assert "nothing was changed: " in str(error.value)
        assert path.read_bytes() == old
        assert list(path.parent.iterdir()) == [path]


def test_a_baseline_that_could_not_be_read_back_is_not_written(path: Path) -> None:
    """Nothing that a review cannot see is in a file."""
    save(path, BASELINE)

    for unfit in (
        replace(BASELINE, records=(replace(RECORD, target_qps=NAN),)),
        replace(BASELINE, records=(replace(RECORD, identity={"gpus": INFINITE}),)),
        replace(BASELINE, round="\udc80"),  # a lone surrogate
    ):
        with pytest.raises(BaselineError, match="not written: "):
            save(path, unfit)
    assert load(path) == BASELINE

    hidden = replace(BASELINE, records=(replace(RECORD, fingerprint={"e\u202e": "\x9b\u2066"}),))

    save(path, hidden)

    assert path.read_text("utf-8").replace("\n", "").isprintable()
    assert load(path) == hidden


def test_an_update_gets_the_stored_content_and_waits_for_another_one_but_not_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that refuses writes nothing."""
    note = Mock(return_value=BASELINE)

    with pytest.raises(BaselineError, match="no"):
        update(path, Mock(side_effect=BaselineError("no")))
    assert not path.exists()
    assert [update(path, note), update(path, note)] == [BASELINE, BASELINE]
    assert note.call_args_list == [call(None), call(BASELINE)]
    assert list(path.parent.iterdir()) == [path]

    monkeypatch.setattr(documents, "LOCK_WAIT_SECONDS", 0.0)

    def nested(old: Baseline | None) -> Baseline:
        # The same file by another name.
        other = path.parent / ".." / path.parent.name / path.name
        with pytest.raises(BaselineError, match="cannot be locked for writing"):
            update(other, lambda _: BASELINE)
        return BASELINE

    update(path, nested)


def add_records(path: Path, worker: int, count: int) -> None:
    """Add records of hardware that no other worker has, with a temporary folder of one's own."""
    tempfile.tempdir = str(path.parents[1] / f"tmp-{worker}")
    for number in range(count):
        mine = replace(RECORD, identity={"worker": worker, "number": number})
        update(path, lambda old, mine=mine: with_record(old or EMPTY, mine))  # type: ignore[misc]


@pytest.mark.process
def test_processes_that_update_one_file_at_once_lose_nothing(path: Path) -> None:
    workers = started(add_records, *((path, worker, 25) for worker in range(2)))

    assert exit_codes(workers) == [0, 0]
    held = present(load(path))
    numbers = {(record.identity["worker"], record.identity["number"]) for record in held.records}
    assert numbers == {(worker, number) for worker in range(2) for number in range(25)}
    assert list(path.parent.iterdir()) == [path]
