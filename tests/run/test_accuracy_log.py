"""LoadGen's accuracy log gives outputs one by one, and only when it is whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.score import ACCURACY, AccuracyLog
from tests.run.harness import RunningWorker, settings, spec


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what LoadGen wrote of three answers: 4, 2 and 7 as int64."""
    folder = tmp_path_factory.mktemp("real")
    with RunningWorker(spec(folder, settings=settings("Server"), performance=False)) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=[4, 2, 7])
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0
    return (folder / "accuracy/block-0" / ACCURACY).read_text("utf-8").rstrip("\n")


def written(folder: Path, *answers: tuple[int, bytes], more: str = "") -> Path:
    """Write a log as LoadGen does."""
    lines = [
        f'{{ "seq_id" : {place}, "qsl_idx" : {index}, "data" : "{data.hex().upper()}"{more} }}'
        for place, (index, data) in enumerate(answers)
    ]
    path = folder / ACCURACY
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return path


@pytest.mark.process
def test_outputs_are_those_that_loadgen_was_given(real: str, tmp_path: Path) -> None:
    path = tmp_path / ACCURACY
    path.write_text(real, "utf-8")

    log = AccuracyLog(path)

    assert sorted(log.items()) == [(i, n.to_bytes(8, "little")) for i, n in enumerate((4, 2, 7))]


@pytest.mark.process
def test_a_log_that_was_cut_anywhere_is_refused(real: str, tmp_path: Path) -> None:
    path = tmp_path / ACCURACY
    for length in range(len(real)):
        path.write_text(real[:length], "utf-8")
        with pytest.raises(RunError, match=r"cut|damaged") as raised:
            AccuracyLog(path)
        assert (raised.value.layer, raised.value.log) == ("loadgen", str(path))


@pytest.mark.parametrize("more", ["", ', "token_count" : 4', ', "token_data" : "05000000"'])
def test_token_fields_change_nothing(tmp_path: Path, more: str) -> None:
    log = AccuracyLog(written(tmp_path, (3, b"abc"), (0, b""), more=more))

    assert dict(log) == {3: b"abc", 0: b""}


def test_of_a_repeated_sample_the_first_answer_counts(tmp_path: Path) -> None:
    log = AccuracyLog(written(tmp_path, (1, b"first"), (0, b"other"), (1, b"second")))

    assert dict(log) == {1: b"first", 0: b"other"}
    assert len(log) == 2


def test_a_sample_without_an_answer_is_a_key_error(tmp_path: Path) -> None:
    log = AccuracyLog(written(tmp_path, (1, b"first")))

    with pytest.raises(KeyError):
        log[0]


@pytest.mark.parametrize("line", ["noise", '{ "seq_id" : 0 },', "]\n[", "\xff"])
def test_another_line_is_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, (0, b"a"))
    path.write_text(path.read_text("utf-8").replace("]", line + "\n]"), "utf-8")

    with pytest.raises(RunError, match=rf"{ACCURACY}:\d is damaged"):
        AccuracyLog(path)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"cannot read {tmp_path / ACCURACY}: No such file"):
        AccuracyLog(tmp_path / ACCURACY)


@pytest.mark.slow
def test_large_outputs_are_not_kept_in_memory(tmp_path: Path) -> None:
    size = 2 * 2**20
    path = written(tmp_path, *((index, bytes([index]) * size) for index in range(32)))

    tracemalloc.start()
    log = AccuracyLog(path)
    sums = [log[index][0] for index in range(32)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert sums == list(range(32))
    assert peak < 8 * size
