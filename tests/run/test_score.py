"""The accuracy log gives outputs one by one, and a watched scorer scores as it always did."""

from __future__ import annotations

import json
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mlperf.adapters.scorers.top1 import Top1Scorer
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import digest
from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog, engine_answers
from pytest_mlperf.run.score import LazySequence, hashed

OUTPUTS = [number.to_bytes(8, "little") for number in (1, 2, 3, 3)]


class Read(Sequence[bytes]):
    def __init__(self) -> None:
        self.times = [0] * len(OUTPUTS)

    def __len__(self) -> int:
        return len(OUTPUTS)

    def __getitem__(self, position: int) -> bytes:  # type: ignore[override]
        output = OUTPUTS[position]
        self.times[position] += 1
        return output


def test_scores_are_the_scorers_own_and_each_output_is_hashed_at_its_first_read() -> None:
    def watched(read: Sequence[bytes]) -> tuple[LazySequence[bytes], dict[int, int]]:
        digests = dict[int, int]()
        return LazySequence(range(len(read)), hashed(read.__getitem__, digests)), digests

    scorer = Top1Scorer(model=None, dtype="int64")
    outputs, digests = watched(OUTPUTS)
    assert scorer.score(outputs, [1, 2, 3, 4]) == scorer.score(OUTPUTS, [1, 2, 3, 4])
    assert digests == dict(enumerate(map(digest, OUTPUTS)))

    read = Read()
    outputs, digests = watched(read)
    assert list(outputs) == OUTPUTS
    assert digests == dict(enumerate(map(digest, OUTPUTS)))
    assert read.times == [1, 1, 1, 1]

    for part in (slice(0, 1), slice(1, 3), slice(None, None, -1)):
        outputs, digests = watched(OUTPUTS)
        assert list(outputs[part]) == OUTPUTS[part]
        assert outputs[-1] == OUTPUTS[-1]
        assert len(outputs) == 4
        assert digests == {n: digest(OUTPUTS[n]) for n in {*range(4)[part], 3}}


def written(folder: Path, *answers: tuple[int, bytes], more: str = "") -> Path:
    lines = [
        f'{{ "seq_id" : {place}, "qsl_idx" : {index}, "data" : "{data.hex().upper()}"{more} }}'
        for place, (index, data) in enumerate(answers)
    ]
    path = folder / ACCURACY_LOG
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return path


def test_a_log_of_another_type_is_read_as_the_engine_answered_and_an_older_one_as_it_is(
    tmp_path: Path,
) -> None:
    answer = array("q", [5, 70_000, 2]).tobytes()
    logged = array("i", [5, 70_000, 2]).tobytes()
    for run, data in (
        (None, answer),
        ({"result": {"issued": 2}}, answer),
        ({"result": {"answer_forms": []}}, answer),
        ({"result": {"answer_forms": ["int64", "int32"]}}, logged),
    ):
        path = written(tmp_path, (0, data), (1, b""))
        if run is not None:
            (tmp_path / "run.json").write_text(json.dumps(run), "utf-8")
        assert dict(AccuracyLog(path)) == engine_answers(path) == {0: answer, 1: b""}
    assert engine_answers(path, {1, 2}) == {1: b""}

    for run_text, data, reason in (
        (
            '{"answer_forms": ["int64", "int32"]}',
            b"12345",
            "an answer of 5 bytes is not a whole number of int32",
        ),
        ('{"answer_forms": ["int64", "text"]}', b"1234", "answers cannot be converted"),
        ('{"answer_forms": 3}', b"", "cannot read .*run.json"),
        ("[]", b"", "cannot read .*run.json"),
        ('{"answer_forms', b"", "cannot read .*run.json"),
    ):
        path = written(tmp_path, (0, data))
        (tmp_path / "run.json").write_text(f'{{"result": {run_text}}}', "utf-8")
        with pytest.raises(RunError, match=reason):
            AccuracyLog(path)[0]
        with pytest.raises(RunError, match=reason):
            engine_answers(path)


def test_token_fields_change_nothing_the_first_answer_counts_another_line_is_named(
    tmp_path: Path,
) -> None:
    for more in ("", ', "token_count" : 4', ', "token_data" : "05000000"'):
        log = AccuracyLog(written(tmp_path, (3, b"abc"), (0, b""), more=more))
        assert dict(log) == {3: b"abc", 0: b""}

    log = AccuracyLog(written(tmp_path, (1, b"first"), (0, b"other"), (1, b"second")))
    assert dict(log) == {1: b"first", 0: b"other"}
    assert len(log) == 2
    with pytest.raises(KeyError):
        log[2]

    text = written(tmp_path, (0, b"a")).read_text("utf-8")
    for line in ("noise", '{ "seq_id" : 0 },', "]\n[", "\xff"):
        (tmp_path / ACCURACY_LOG).write_text(text.replace("]", line + "\n]"), "utf-8")
        with pytest.raises(RunError, match=rf"{ACCURACY_LOG}:\d is damaged"):
            AccuracyLog(tmp_path / ACCURACY_LOG)
    (tmp_path / ACCURACY_LOG).write_text(text.removesuffix("\n]\n"), "utf-8")
    with pytest.raises(RunError, match="is truncated: its closing bracket is missing"):
        AccuracyLog(tmp_path / ACCURACY_LOG)
    with pytest.raises(RunError, match=f"cannot read {tmp_path / 'none'}: No such file"):
        AccuracyLog(tmp_path / "none")


def test_large_outputs_are_not_kept_in_memory(tmp_path: Path) -> None:
    size = 2**18
    path = written(tmp_path, *((index, bytes([index]) * size) for index in range(32)))

    tracemalloc.start()
    log = AccuracyLog(path)
    sums = [log[index][0] for index in range(32)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert sums == list(range(32))
    assert peak < 8 * size
