"""Whatever a log of LoadGen holds, reading it gives figures or one RunError, and nothing else."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog
from pytest_mlperf.run.logs import DETAIL, Detail, Timed, parse_detail
from pytest_mlperf.run.score import answers
from tests.run.harness import FEWER, entry

T = TypeVar("T")

TIME = "11-22-2026 08:40:04.123"
VALUES: dict[str, Any] = {
    "loadgen_version": "6.0.17 @ d6147c7eb7",
    "effective_test_mode": "PerformanceOnly",
    "power_begin": TIME,
    "power_end": TIME,
    "result_validity": "VALID",
    "result_perf_constraints_met": True,
    "result_min_duration_met": True,
    "result_min_queries_met": True,
    "early_stopping_met": True,
    "result_query_count": 999,
    "result_samples_per_second": 4987.59,
    "result_completed_samples_per_sec": 4987.59,
    "result_completed_tokens_per_second": 77.5,
    "result_min_latency_ns": 2362,
    "result_50.00_percentile_latency_ns": 80108,
    "result_90.00_percentile_latency_ns": 102448,
    "result_99.00_percentile_latency_ns": 4048193,
    "result_90.00_percentile_per_query_latency_ns": 5,
    "result_first_token_99.00_percentile_latency_ns": 5,
    "result_time_per_output_token_99.00_percentile_ns": 5,
    "num_errors": 0,
}
ALLOCATION = (
    "warning_generic_message",
    "Logging allocation detected: tid: 29488 reserved_entries: 1024 max_entries: 3197",
)
NASTY = (
    "null",
    "[]",
    "{}",
    '"a/b"',
    "-1",
    "true",
    "1e999",
    "-1e999",
    "NaN",
    "1" + 400 * "0",
    "1" + 5000 * "0",
    '"\\ud800"',
    90 * "[" + 90 * "]",
    900 * "[" + 900 * "]",
    60_000 * "[",
)


WHOLE = "".join(entry(key, value) for key, value in VALUES.items())
WARNING = entry(*ALLOCATION, is_warning=True)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / DETAIL
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def attempt(call: Callable[[], T]) -> T | RunError:
    """Return the result of a call, or the one error that it may raise."""
    try:
        return call()
    except RunError as error:
        return error


def read_all(detail: Detail) -> None:
    """Ask a log everything that it can be asked."""
    flags = (
        detail.valid,
        *(value for key, value in detail.values.items() if key.endswith("_met")),
    )
    assert {type(flag) for flag in flags} <= {bool, type(None)}
    asks: list[Callable[[], object]] = [
        detail.require_no_errors,
        lambda: detail.window_s,
        *(
            partial(detail.metrics, scenario)
            for scenario in (Scenario.OFFLINE, Scenario.SERVER, Scenario.MULTI_STREAM)
        ),
        *(partial(detail.percentile_ns, timed, 0.9) for timed in get_args(Timed)),
    ]
    refused = [error for ask in asks if isinstance(error := attempt(ask), RunError)]
    assert {error.log for error in refused} <= {detail.path}


def test_a_warning_after_the_last_key_is_no_cut_and_an_error_counts(tmp_path: Path) -> None:
    """LoadGen adds it when a thread that completed many samples has ended."""
    detail = parse_detail(written(tmp_path, WHOLE + WARNING + WARNING))
    assert detail.valid
    assert detail.num_errors == 0
    detail.require_no_errors()
    accuracy_run = entry("effective_test_mode", "AccuracyOnly") + entry("power_end", TIME)
    assert parse_detail(written(tmp_path, accuracy_run + WARNING)).num_errors == 0
    for more in (entry("result_validity", "VALID"), entry("e", "", is_error=True)):
        with pytest.raises(RunError, match=r"continues with '\w+' after 'num_errors', which"):
            parse_detail(written(tmp_path, WHOLE + more))

    log = written(tmp_path, entry("error_runtime", "twice", is_error=True) + WHOLE)
    assert parse_detail(log).num_errors == 1


def test_without_its_last_key_a_log_is_cut_or_of_an_old_loadgen(tmp_path: Path) -> None:
    cut = "is truncated: LoadGen ends it with 'num_errors'"
    newer = dict.fromkeys(["5.0.16", "5.1.0", "6.0.17 @ d6147c7eb7", "", "unknown"], cut)
    old = {
        one: rf"written by LoadGen {one[:3]}.*5\.0\.16" for one in ("4.1", "5.0.15 @ abc", "5.0")
    }
    for version, match in {**newer, **old}.items():
        log = entry("loadgen_version", version) + entry("result_validity", "VALID")
        with pytest.raises(RunError, match=match):
            parse_detail(written(tmp_path, log))


def test_a_value_of_another_type_is_refused_with_file_and_line(tmp_path: Path) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("num_errors", "a/b", "num_errors is 'a/b', not a count"),
        ("num_errors", -1, "num_errors is -1, not a count"),
        ("num_errors", False, "not a count"),
        ("result_query_count", 2.5, "not a count"),
        ("result_90.00_percentile_latency_ns", [5], "not whole ns"),
        ("result_90.00_percentile_latency_ns", float("inf"), "not whole ns"),
        ("result_min_duration_met", "false", "not true or false"),
        ("effective_test_mode", ["AccuracyOnly"], "not a text"),
        ("power_begin", "yesterday", "not a time as"),
        ("power_end", None, "not a time as"),
        ("result_samples_per_second", "fast", "not a number"),
    ]
    for key, value, words in cases:
        path = written(tmp_path, "".join(entry(k, v) for k, v in {**VALUES, key: value}.items()))
        with pytest.raises(RunError) as raised:
            parse_detail(path)
        message = f"{path}:{list(VALUES).index(key) + 1} is damaged: {key} is "
        assert message in str(raised.value)
        assert words in str(raised.value)

    for rate in (float("inf"), float("nan"), 0):
        values = {**VALUES, "result_samples_per_second": rate}
        detail = parse_detail(written(tmp_path, "".join(map(entry, values, values.values()))))
        with pytest.raises(RunError, match=r"result_samples_per_second is .* must be positive"):
            detail.metrics(Scenario.OFFLINE)
    detail = parse_detail(written(tmp_path, entry("num_errors", 0)))
    with pytest.raises(RunError, match="has no power_begin and no power_end"):
        _ = detail.window_s


def edits(text: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy of texts that are damaged in a few places.

    Something is put in, what follows is cut (a positive size) or doubled (a negative one).
    """
    put = st.just(b"") | st.binary(max_size=4) | st.sampled_from(NASTY).map(str.encode)
    size = st.just(0) | st.integers(-200, 200)

    def apply(several: list[tuple[int, int, bytes]]) -> bytes:
        data = text
        for at, cut, more in several:
            data = data[:at] + more + data[max(0, at + cut) :]
        return data

    edit = st.tuples(st.integers(0, len(text)), size, put)
    return st.lists(edit, min_size=1, max_size=3).map(apply)


@FEWER
@given(text=edits((WHOLE + WARNING).encode()))
def test_a_damaged_detail_log_is_never_another_error(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    path = written(tmp_path_factory.getbasetemp(), text)
    outcome = attempt(lambda: parse_detail(path))
    if isinstance(outcome, Detail):
        read_all(outcome)
    else:
        assert outcome.log == str(path)


def test_no_value_of_any_key_and_no_other_part_of_a_line_is_another_error(tmp_path: Path) -> None:
    lines = WHOLE.splitlines()
    for (number, (key, value)), nasty in itertools.product(enumerate(VALUES.items()), NASTY):
        changed = lines[number].replace(f'"value": {json.dumps(value)}', f'"value": {nasty}')
        assert changed != lines[number] or json.dumps(value) == nasty, key
        path = written(tmp_path, "\n".join([*lines[:number], changed, *lines[number + 1 :], ""]))
        outcome = attempt(partial(parse_detail, path))
        if isinstance(outcome, Detail):
            read_all(outcome)
        else:
            assert f"{path}:{number + 1} " in str(outcome) or "is cut" in str(outcome)

    usual = {"key": '"error_runtime"', "value": "1", "metadata": '{"is_error": true}'}
    for part, nasty in itertools.product(("key", "metadata"), NASTY):
        text = ", ".join(f'"{name}": {value}' for name, value in {**usual, part: nasty}.items())
        path = written(tmp_path, f":::MLLOG {{{text}}}\n{WHOLE}")
        outcome = attempt(partial(parse_detail, path))
        if isinstance(outcome, Detail):
            read_all(outcome)
        else:
            assert f"{path}:1 is not an entry of LoadGen" in str(outcome)


def test_a_log_that_a_full_disk_cut_short_is_blamed_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a line, and at the end of one."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 10))
    half = WHOLE[: len(WHOLE) // 2]
    for text in (half, half[: half.rindex("\n") + 1]):
        error = attempt(partial(parse_detail, written(tmp_path, text)))
        assert "the disk is full (3 KiB free)" in str(error)


def accuracy(folder: Path, text: bytes) -> Path:
    path = folder / ACCURACY_LOG
    path.write_bytes(text)
    return path


def answer(index: object, data: str) -> str:
    return f'{{ "seq_id" : 0, "qsl_idx" : {index}, "data" : "{data}" }}'


ANSWERS = ("[\n" + ",\n".join(answer(i, 4 * f"0{i}") for i in range(3)) + "\n]\n").encode()


def test_a_log_of_something_else_and_samples_of_no_block_are_named(tmp_path: Path) -> None:
    for text in ("[\n]\n", "[\n\n]\n", "[\n\n]"):
        with pytest.raises(RunError, match="is empty: LoadGen logged no answer"):
            AccuracyLog(accuracy(tmp_path, text.encode()))
    for line in (answer(0, "ABC"), answer("9" * 5000, "AB"), answer(-1, "AB")):
        with pytest.raises(RunError, match=rf"{ACCURACY_LOG}:2 is damaged: .* is not an answer"):
            AccuracyLog(accuracy(tmp_path, f"[\n{line}\n]\n".encode()))

    log = accuracy(tmp_path, ANSWERS)
    block = {"log": log, "indices": [7, 8, 9]}
    for blocks, match in (
        ([{"log": log, "indices": [70, 80]}], "answers sample 2, the run had 2 samples"),
        ([block, block], "sample 7 was answered twice"),
        ([{**block, "indices": [7, 8, 9, 5]}], "1 samples were not answered, first: 5"),
    ):
        with pytest.raises(RunError, match=match) as raised:
            answers(blocks)
        assert raised.value.log in (None, str(log))


@FEWER
@given(text=edits(ANSWERS))
def test_a_damaged_accuracy_log_is_never_another_error(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    path = accuracy(tmp_path_factory.getbasetemp(), text)
    outcome = attempt(lambda: answers([{"log": path, "indices": [7, 8, 9]}]))
    if isinstance(outcome, RunError):
        assert outcome.log in {str(path), None}
    else:
        assert [type(log[position]) for log, position in outcome.values()] == [bytes] * 3
