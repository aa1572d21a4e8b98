"""Test imported results of MLCommons' endpoints client: read, judged, refused and never guessed.

The folders in tests/data/endpoints were written by the client itself (mlcommons/endpoints at
ea332753) against its own echo server, with 4 ms before each piece of an answer.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.official.commands.imports import endpoints
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.endpoints import read_point
from pytest_mlperf.stores.results import read_results
from tests.cli.lab import git
from tests.cli.recorded import (
    ANSWERS,
    CONFIG,
    EVENTS,
    FOLDER,
    MAP,
    SUMMARY,
    Change,
    change,
    record,
    slowed,
)
from tests.cli.text import Say, differing

Make = Callable[..., Path]
NAMES = ("--engine", "vllm", "--precision", "fp8", "--accelerator", "8xH100")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a session of two points whose times are a factor longer than recorded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def make(name: str, factor: float = 1.0) -> Path:
        return record(Path(name), factor)

    return make


def only(path: str | Path = "r.json") -> CaseResult:
    (result,) = read_results(Path(path)).cases
    return result


def imported(say: Say, *folders: object, options: tuple[str, ...] = ()) -> tuple[int, str]:
    return say("import", "endpoints", *folders, *NAMES, "-o", "r.json", *options)


def reads(say: Say, code: int, *folders: object, options: tuple[str, ...] = ()) -> str:
    return say.ends(code, "import", "endpoints", *folders, *NAMES, "-o", "r.json", *options)


def edited(session: Make, number: int, edit: Change, file: str = SUMMARY) -> Path:
    """Make a session whose second point was changed."""
    folder = session(f"day{number}")
    change(folder / "c4", edit, file)
    return folder


def test_a_session_is_a_curve_with_its_conditions(say: Say, session: Make) -> None:
    """The conditions are in the fingerprint, the harness is in the key."""
    assert "wrote r.json" in reads(say, 0, session("day1"))
    result = only()
    raw = json.loads((FOLDER / "c4" / SUMMARY).read_text("utf-8"))
    (run,) = result.verdict.runs
    assert result.verdict.case.id == "echo-Concurrency-vllm-fp8-8xH100"
    assert set(result.limits) == {"tokens_per_second", "tokens_per_second@1", "tokens_per_second@4"}
    for name, value in {
        "throughput@4": raw["qps"],
        "tokens_per_second@4": raw["tps"],
        "tokens_per_sample@4": raw["output_sequence_lengths"]["avg"],
        "ttft_p90@4": raw["ttft"]["percentiles"]["90.0"] / 1e9,
        "tpot_p50@4": raw["tpot"]["percentiles"]["50.0"] / 1e9,
        "latency_p99@4": raw["latency"]["percentiles"]["99.0"] / 1e9,
        "tps_per_user@4": 1e9 / raw["tpot"]["percentiles"]["90.0"],
        "tokens_per_second": math.sqrt(
            run.metrics["tokens_per_second@1"] * run.metrics["tokens_per_second@4"]
        ),
        "tokens_per_second_per_gpu": run.metrics["tokens_per_second"] / 8,
    }.items():
        assert run.metrics[name] == pytest.approx(value, rel=1e-6), name
    assert (run.samples, run.invalid) == (300, ())
    assert run.duration_s == pytest.approx(12.155, abs=0.001)

    imported(say, "day1", options=("--system", "dgx-7"))

    subject = only().verdict.subject
    assert subject is not None
    assert subject.identity == {"harness": "MLCommons endpoints", "system": "dgx-7"}
    for key, text in {
        "harness.version": "0.1.0",
        "harness.git_sha": "unknown",
        "model_params.name": "echo",
        "model_params.max_new_tokens": "64",
        "model_params.streaming": "on",
        "dataset.path": "prompts.jsonl",
        "settings.load_pattern.type": "concurrency",
        "settings.runtime.scheduler_random_seed": "42",
        "settings.warmup.enabled": "True",
        "settings.warmup.salt": "False",
        "endpoint_config.api_type": "openai",
    }.items():
        assert subject.fingerprint[key] == text
    assert subject.fingerprint["points"] == "1, 4"
    assert not [key for key in subject.fingerprint if "concurrency" in key or "endpoints" in key]


def test_the_metrics_of_the_points_are_judged(say: Say, session: Make) -> None:
    """From a run folder alone, a flat one as in MLPerf Inference v6.1, and without a tokenizer."""
    folder = session("day1")
    assert imported(say, folder / "c4")[0] == 0
    assert set(only().limits) == {"tokens_per_second", "tokens_per_second@4"}
    (folder / "c4" / SUMMARY).rename(folder / "c4" / "result_summary.json")
    assert imported(say, folder / "c4")[0] == 0
    folder = session("day2")
    for name in ("logs", ".cache"):
        (folder / name).mkdir()
    for point in ("c1", "c4"):
        change(folder / point, lambda raw: raw.update(tps=None, output_sequence_lengths={}))
    change(folder / "c4", lambda raw: raw["tpot"]["percentiles"].update(IMPOSSIBLE))
    output = reads(say, 0, folder)
    assert output.count("left out: day2") == 1
    assert "left out: day2/logs, which is not a run folder" in output
    assert set(only().limits) == {"throughput", "throughput@1", "throughput@4"}
    verdict = only().verdict
    assert not {"tpot_p50@4", "tpot_p99@4"} & set(verdict.runs[0].metrics)
    assert any("at 4: tpot_p50 is left out" in note for note in map(sentence, verdict.notes))


IMPOSSIBLE = {"50.0": -760.37, "99.0": None}
"""An echo server that answers at once gives their client negative times: seen, not made up."""


OTHER_RELEASES: list[Change] = [
    lambda raw: raw.update(later={"anything": ["at all"]}, steady_state=None),
    lambda raw: raw.update(n_samples_succeeded=240, n_samples_dropped=0),
    lambda raw: raw["ttft"].update(early_stopping_percentiles={"99.0": None}),
    lambda raw: raw["ttft"].pop("early_stopping_percentiles"),
    lambda raw: raw["latency"].update(histogram={"buckets": "other", "counts": None}),
    lambda raw: raw["ttft"].update(unit="ns"),
    lambda raw: raw.pop("run_config"),
    lambda raw: raw["ttft"].update(
        percentiles={k.removesuffix(".0"): v for k, v in raw["ttft"]["percentiles"].items()}
    ),
]


def test_formats_of_other_releases_are_read_alike(say: Say, session: Make) -> None:
    """And an import that is made again is the same session."""
    imported(say, session("day0"))
    first_runs = only().verdict.runs
    for number, edit in enumerate(OTHER_RELEASES, start=1):
        assert imported(say, edited(session, number, edit))[0] == 0, number
        assert only().verdict.runs[0].metrics == first_runs[0].metrics, number
    imported(say, "day0")
    assert only().verdict.runs == first_runs


def test_a_session_began_by_its_files_where_the_client_does_not_say(
    say: Say, session: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says zero, the time since the machine began, or the time of day; else one by hand."""
    folder = session("day1")
    since_the_start = 78_884_696_922_143
    for stated, began in ((0, 54), (since_the_start, 54), (1_790_000_100 * 10**9, 60)):
        for point, ended in (("c1", 1_790_000_100), ("c4", 1_790_000_200)):
            change(folder / point, partial(dict.update, test_started_at=stated))
            os.utime(folder / point / SUMMARY, (ended, ended))
        imported(say, folder)
        time = dt.datetime(2026, 9, 21, 14, 14, tzinfo=dt.UTC) + dt.timedelta(seconds=began)
        assert only().verdict.runs[0].started == time.isoformat()
    for ended_s in (1e18, -1e12):
        monkeypatch.setattr(
            endpoints,
            "read_point",
            lambda path, end=ended_s: replace(read_point(path), ended_s=end),
        )
        assert "add --started with the time" in reads(say, 2, folder / "c4")


def test_the_user_says_when_sessions_began(say: Say, session: Make) -> None:
    two = session("day1"), session("day2", 1.01)
    times = ("--started", "2026-11-22T08:00:00", "--started", "2026-11-21T08:00:00+01:00")
    assert imported(say, *two, options=times)[0] == 0
    assert [run.started for run in only().verdict.runs] == [
        "2026-11-21T07:00:00+00:00",
        "2026-11-22T08:00:00+00:00",
    ]
    for wrong, reason in (
        (times[:2], "1 --started option, but 2 sessions"),
        (("--started", "noon"), "1 --started option, but 2 sessions"),
    ):
        assert reason in imported(say, *two, options=wrong)[1]
    assert "is not a time" in imported(say, two[0], options=("--started", "noon"))[1]


INVALID: list[tuple[Change, Key, str]] = [
    (lambda r: r.update(n_samples_failed=3), Key.REQUESTS_FAILED, "3 of 240 requests failed"),
    (lambda r: r.update(n_samples_issued=241), Key.REQUESTS_FAILED, "1 of 241 requests did"),
    (lambda r: r.update(n_samples_dropped=2), Key.REQUESTS_FAILED, "2 of 240 requests were dr"),
    (lambda r: r.update(n_samples_succeeded=239), Key.REQUESTS_FAILED, "1 of 240 requests did"),
    (lambda r: r.update(state="interrupted"), Key.NOT_COMPLETE, "'interrupted'"),
    (lambda r: r.update(complete=False), Key.NOT_COMPLETE, "not complete"),
    (lambda r: r.pop("state"), Key.NOT_COMPLETE, "not complete"),
    (lambda r: r["latency"].update(avg=r["latency"]["avg"] * 0.98), Key.CONCURRENCY_NOT_HELD, ""),
    (lambda r: r["latency"].update(avg=r["latency"]["avg"] * 1.04), Key.CONCURRENCY_NOT_HELD, ""),
    (lambda r: r.update(latency={}), Key.TOO_FEW_REQUESTS, ""),
    (lambda r: r.update(duration_ns=None, qps=None, tps=None), Key.TOO_FEW_REQUESTS, ""),
    (
        lambda r: r.update(n_samples_issued=9, n_samples_completed=9, qps=None),
        Key.TOO_FEW_REQUESTS,
        "",
    ),
]


def test_invalid_points_make_their_session_invalid(say: Say, session: Make) -> None:
    good, failures = session("day0", 1.01), []
    for number, (edit, key, words) in enumerate(INVALID, start=1):
        code, output = imported(say, good, edited(session, number, edit))
        verdict = only().verdict
        outcome = (code, verdict.outcome, len(verdict.runs), len(verdict.invalid_runs))
        keys = {reason.key for reason in verdict.reasons}
        texts = "at 4: " in output and words in output and "imported::" not in output
        if outcome != (1, Outcome.INVALID, 1, 1) or key not in keys or not texts:
            failures.append((number, outcome, keys, output))
    assert failures == []
    assert "INVALID" in say("update", "r.json", "--baselines", "b")[1]


def test_every_session_that_is_invalid_is_named(say: Say, session: Make) -> None:
    """And a run that was ended early is not complete, unless by its own limit of time."""
    # Sessions stand in the order in which they began: a shorter one that ended later began later.
    folders = [session("day1"), session("day2", 0.99)]
    for failed, folder in enumerate(folders, start=3):
        change(folder / "c4", partial(dict.update, n_samples_failed=failed))
    output = reads(say, 1, *folders)
    assert "2 of 2 sessions, day1: at 4: 3 of 240 requests failed" in output
    assert "day2: at 4: 4 of 240 requests failed" in output
    assert "measured again" not in output
    runtime = "settings.runtime"
    folder = session("day3")
    change(folder / "c4", put(f"{runtime}.n_samples_to_issue", 5000), CONFIG)
    assert imported(say, folder)[0] == 1
    (reason,) = only().verdict.reasons
    ended = Note.of("ended_early", count=240, of=5000)
    assert (reason.key, reason.text) == (Key.NOT_COMPLETE, Note.of("at", point=4, note=ended))
    change(folder / "c4", put(f"{runtime}.max_duration_ms", 6000), CONFIG)
    assert imported(say, folder)[0] == 0


SCORES: dict[str, Any] = {
    "average_accuracy": 0.82,
    "accuracy_scores": [
        {
            "dataset_name": "gpqa",
            "dataset_type": "accuracy",
            "score": 0.82,
            "unit_samples": 198,
            "num_repeats": 5,
            "total_samples": 990,
            "complete": True,
            "response_counts": {"issued": 990, "scored": 990, "empty": 0, "missing": 0},
        }
    ],
}


def scored(folder: Path, edit: Change) -> None:
    (folder / "accuracy").mkdir()
    (folder / "accuracy/accuracy_results.json").write_text(json.dumps(SCORES), "utf-8")
    change(folder, lambda raw: edit(raw["accuracy_scores"][0]), "accuracy/accuracy_results.json")


def test_scores_are_reported_and_judged_if_possible(say: Say, session: Make) -> None:
    """Answers that are empty or missing are invalid."""
    folder = session("day9")
    scored(folder / "c4", lambda entry: None)
    for name, words in (
        (
            "",
            "not judged: without events.jsonl and sample_idx_map.json answers cannot be matched to",
        ),
        (EVENTS, "not judged: without sample_idx_map.json answers cannot be matched to samples"),
        (MAP, "not judged here; a suite with engine recorded scores the answers, sample by sample"),
    ):
        if name:
            shutil.copy(ANSWERS / name, folder / "c4")
        assert imported(say, folder)[0] == 0
        assert f"'gpqa' 0.82 on 990 samples, {words}" in "\n".join(
            map(sentence, only().verdict.notes)
        )

    edits: list[tuple[Change, str]] = [
        (lambda entry: entry["response_counts"].update(missing=4), "4 missing"),
        (lambda entry: entry["response_counts"].update(empty=1200), "1,200 empty"),
        (lambda entry: entry.update(complete=False), "scored in part"),
        (lambda entry: entry.update(complete=False, score=None), "scored in part"),
    ]
    for number, (edit, words) in enumerate(edits):
        folder = session(f"day{number}")
        scored(folder / "c4", edit)
        assert words in reads(say, 1, folder)
        assert {reason.key for reason in only().verdict.reasons} == {Key.ANSWERS_MISSING}


def put(path: str, value: object) -> Change:
    """Return what changes a value of a file."""

    def edit(content: Any) -> None:
        *above, last = (int(key) if key.isdigit() else key for key in path.split("."))
        for key in above:
            content = content[key]
        content[last] = value

    return edit


POINT = "settings.load_pattern"
REFUSED: list[tuple[str, Change, str]] = [
    (SUMMARY, lambda r: r.update(qps=r["qps"] * 1.002), "qps is"),
    (SUMMARY, lambda r: r.update(tps=r["tps"] / 1000), "tps is"),
    (
        SUMMARY,
        lambda r: r.update(duration_s=r.pop("duration_ns") / 1e9),
        "duration_ns is missing: the client of this version writes its times in nanoseconds",
    ),
    (SUMMARY, lambda r: r["ttft"].update(unit="ms"), "ttft.unit is 'ms'"),
    (SUMMARY, lambda r: r.pop("n_samples_failed"), "n_samples_failed is missing"),
    (SUMMARY, lambda r: r.update(qps="fast"), "qps must be a number, not 'fast'"),
    (SUMMARY, lambda r: r.update(n_samples_failed=False), "must be a number, not False"),
    (SUMMARY, lambda r: r.update(qps=math.nan), "qps is nan"),
    (SUMMARY, lambda r: r.update(qps=10**400), "qps is 1"),
    (SUMMARY, lambda r: r.update(ttft=[1]), "ttft must be an object, not [1]"),
    (SUMMARY, lambda r: r.update(n_samples_completed=0.5), "which is not a count"),
    (CONFIG, put(f"{POINT}.type", "poisson"), "its load pattern is 'poisson'; only runs with"),
    (
        CONFIG,
        put(f"{POINT}.target_concurrency", 8),
        "concurrency 8, result_summary.json has 4: they",
    ),
    (CONFIG, put(f"{POINT}.target_concurrency", "many"), "target_concurrency is 'many'"),
    (
        CONFIG,
        put("model_params.name", "other"),
        "model_params.name differs: 'echo' in day1/c1, 'other' in day1/c4",
    ),
    (CONFIG, put("model_params.temperature", 0.7), "temperature differs: 'absent' in day1/c1, '0."),
    (CONFIG, put("datasets.0.path", "other.jsonl"), "dataset.path differs"),
    (CONFIG, put("endpoint_config.endpoints", ["http://other:8000"]), "endpoints differs"),
    (SUMMARY, lambda r: r.update(git_sha="abc"), "harness.git_sha differs"),
]


CUT = (
    *(b"", b"{", b"[]", b"\xff\xfe\x00", b"[" * 100_000, b'{"n_samples_issued": 1}'),
    *(b"datasets: 5\n", b"a: !!timestamp x\n", b'a: !!int ""\n'),
    *(b"a: !!python/object/apply:os.getcwd []\n", b"a: &a [*a]\nb: *a\n"),
    b"a: &a {x: 1, y: 2}\n"
    + b"".join(
        b"%c: &%c [*%c, *%c, *%c, *%c]\n" % (98 + n, 98 + n, *[97 + n] * 4) for n in range(12)
    ),
)
JSON_TOO = 6
"""Of these the first ones are no JSON either, and the summary is JSON."""

SCORES_CUT = (
    *("{", "[]", "{}", '{"accuracy_scores": [1]}', '{"accuracy_scores": [{"score": 1e999}]}'),
)


def test_one_sentence_names_the_defect_and_its_place(say: Say, session: Make) -> None:
    """Values that contradict each other or are unknown, and files that are cut or hostile."""
    folder, failures = session("day1"), []
    files = {file: (folder / "c4" / file).read_bytes() for file in (SUMMARY, CONFIG)}

    def check(row: object, words: str = "day1/c4") -> None:
        code, output = imported(say, folder)
        complete = words in output and "day1/c4" in output and output.count("\n") == 1
        if (code, complete) != (2, True):
            failures.append((row, code, output))
        for file, content in files.items():
            (folder / "c4" / file).write_bytes(content)

    for file, edit, words in REFUSED:
        change(folder / "c4", edit, file)
        check(words, words)
    for number, content in enumerate(CUT):
        for file in files if number < JSON_TOO else (CONFIG,):
            (folder / "c4" / file).write_bytes(content)
            check((number, file))
    for text in SCORES_CUT:
        (folder / "c4" / "accuracy_results.json").write_text(text, "utf-8")
        check(text, "day1/c4/accuracy_results.json")

    assert failures == []
    assert not Path("r.json").exists()


def test_text_of_a_folder_rules_no_terminal_and_no_path(say: Say, session: Make) -> None:
    folder = session("day1")
    name = put("model_params.name", "org/../\x1b[2J::error::Ünder \ud83d x" * 9)
    for point in ("c1", "c4"):
        change(folder / point, name, CONFIG)
    assert "\x1b" not in reads(say, 0, folder)
    assert "/" not in only().verdict.case.workload
    assert say("report", "r.json")[0] == 0


def test_inputs_without_a_session_are_refused(
    say: Say, session: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = session("day1")
    shutil.copytree(folder / "c4", folder / "again")
    assert "both have concurrency 4" in imported(say, folder)[1]
    shutil.rmtree(folder / "again")
    shutil.copytree(folder, "copy")
    assert "copy/c1 holds the same result as day1/c1" in imported(say, folder, "copy")[1]
    assert "day1/c1 holds the same result as day1/c1" in imported(say, folder, folder)[1]
    assert "; copy contains some: name each session's folder" in imported(say, ".")[1]
    for name in ("nowhere", "n" * 300, "copy/c1/config.yaml"):
        assert f"{name[:99]}" in imported(say, name)[1]
        assert "cannot be read: " in imported(say, name)[1]
    (folder / "c4" / SUMMARY).unlink()
    assert (
        "day1/c4: incomplete: it has config.yaml and no result_summary.json"
        in imported(say, folder)[1]
    )
    (folder / "c4" / CONFIG).unlink()
    change(Path("copy/c1"), slowed(1.01))
    assert "its session has the concurrencies 1, but" in imported(say, "copy", folder)[1]
    assert not Path("r.json").exists()

    folder = session("day2")
    for option, value, words in (
        ("--engine", "../up", "'../up' is not a name"),
        ("--accelerator", "8 GPUs", "is not an accelerator"),
        ("--workload", "a b", "is not a name"),
    ):
        assert words in reads(say, 2, folder, options=(option, value))
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install 'pytest-mlperf[endpoints]'" in reads(say, 3, folder)


NOISE = (1.0, 1.004, 0.997, 1.002, 0.995)


def days(session: Make, factor: float = 1.0, name: str = "day") -> list[Path]:
    return [session(f"{name}{n}", factor * noise) for n, noise in enumerate(NOISE)]


@pytest.mark.process
def test_a_baseline_in_git_and_a_drop_against_it(say: Say, session: Make) -> None:
    imported(say, *days(session))
    write = ("--baselines", "baselines", "--no-runs", "--write", "--reason", "first")
    assert "wrote 1, refused 0" in say.ends(0, "update", "r.json", *write)
    assert "these runs are already in the baseline" in say("update", "r.json", *write)[1]
    git(Path(), "init", "-q", "-b", "main")
    git(Path(), "add", "baselines")
    git(Path(), "commit", "-q", "-m", "a curve")
    imported(say, *days(session, 1.001, "same"))
    assert "PERF DROP" not in say.ends(0, "compare", "git:HEAD", "r.json")
    imported(say, *days(session, 1.08, "slow"))
    output = say.ends(1, "compare", "git:HEAD", "r.json")
    assert "PERF DROP" in output
    assert "tokens/s at 4" in output


def shorter(raw: Any) -> None:
    """Let answers be shorter, and so more requests be done."""
    raw["output_sequence_lengths"]["total"] = round(raw["output_sequence_lengths"]["total"] * 0.9)
    raw["tps"] *= 0.9


@pytest.mark.process
def test_runs_under_other_conditions_are_never_compared(say: Say, session: Make) -> None:
    """Shorter answers are not an improvement; other points and other systems are not a drop."""
    system = ("--system", "dgx-7")
    imported(say, session("day1"), options=system)
    Path("r.json").rename("before.json")
    change(session("day2", 0.9) / "c4", shorter)
    session("day3", 1.01)
    for folder, options, words in (
        ("day2", system, ("tokens/sample at 4, less than in the baseline",)),
        ("day3/c4", system, ("1, 4 → 4",)),
        ("day3", ("--system", "dgx-8"), ("system dgx-7 → dgx-8",)),
    ):
        imported(say, folder, options=options)
        assert differing(say, [(("compare", "before.json", "r.json"), 2, words)]) == []


def test_the_results_lie_with_other_sessions_unless_named(say: Say, session: Make) -> None:
    """The engine is called as ours is that speaks the same; too few sessions make no baseline."""
    code, _ = say("import", "endpoints", session("day1"), *NAMES[2:])
    (file,) = Path(".mlperf/runs").glob("*/results.json")
    assert (code, only(file).suite, only(file).verdict.case.engine) == (0, "imported", "openai")
    assert say("report", file, "--format", "html", "-o", "page.html")[0] == 0
    assert "tokens/s" in Path("page.html").read_text("utf-8")
    _, output = imported(say, "day1")
    assert "a baseline needs 5 sessions" in output
    output = say.ends(1, "update", "r.json", "--baselines", "b", "--write", "--reason", "first")
    assert "import more sessions together" in output
    assert "imported results have no suite" in say("update", "r.json")[1]
