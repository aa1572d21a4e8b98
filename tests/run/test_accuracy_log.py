"""LoadGen's accuracy log gives outputs one by one, and only when it is whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.score import ACCURACY, AccuracyLog


def written(folder: Path, *answers: tuple[int, bytes], more: str = "") -> Path:
    """Write a log as LoadGen does."""
    lines = [
        f'{{ "seq_id" : {place}, "qsl_idx" : {index}, "data" : "{data.hex().upper()}"{more} }}'
        for place, (index, data) in enumerate(answers)
    ]
    path = folder / ACCURACY
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return path


def test_token_fields_change_nothing_and_the_first_answer_of_a_sample_counts(
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


def test_another_line_is_named(tmp_path: Path) -> None:
    text = written(tmp_path, (0, b"a")).read_text("utf-8")
    for line in ("noise", '{ "seq_id" : 0 },', "]\n[", "\xff"):
        (tmp_path / ACCURACY).write_text(text.replace("]", line + "\n]"), "utf-8")
        with pytest.raises(RunError, match=rf"{ACCURACY}:\d is damaged"):
            AccuracyLog(tmp_path / ACCURACY)
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
