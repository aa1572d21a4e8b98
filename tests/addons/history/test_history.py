"""`pytest-mlperf history`: accepted baselines in real git repositories."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.baseline import (
    Baseline,
    BaselineRun,
    HistoryEntry,
    Record,
    find_record,
    geometric_means,
)
from pytest_mlperf.stores import baselines
from tests.cli.lab import CASE as LAB_CASE
from tests.cli.lab import Lab, git
from tests.cli.text import Say, one_line, widest

pytestmark = pytest.mark.process


FILE = Path("baselines/H200/quick/llama/Offline.trtllm.fp8.json")
CASE = "llama-Offline-trtllm-fp8-H200"
VERSIONS = (
    ("2026-03-02", "1.0.0", 20_000.0),
    ("2026-05-11", "1.1.0", 21_500.0),
    ("2026-08-20", "1.2.0", 21_520.0),
    ("2026-10-02", "1.2.1", 19_000.0),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository as the working folder."""
    path = tmp_path / "repository"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    git(path, "init", "-q", "-b", "main")
    return path


def version(number: int, file: Path = FILE, **fields: Any) -> None:
    """Accept one of the versions as a baseline."""
    date, name, value = VERSIONS[number]
    accept(file, date, name, measured(date, value), **fields)


def measured(date: str, value: float, *, name: str = "tokens_per_second", count: int = 8) -> Any:
    """Return runs around a value, two a session."""
    rng = random.Random(f"{date}{value}")
    return tuple(
        BaselineRun(
            metrics={name: value * math.exp(rng.gauss(0, 0.004)), "throughput": value / 250},
            within_se={},
            session=f"{date}-{number // 2}",
            started=f"{date}T0{number}:00:00+00:00",
            samples=24_576,
            duration_s=60.0,
            commit=None,
        )
        for number in range(count)
    )


def accept(
    file: Path,
    date: str,
    version: str,
    runs: tuple[BaselineRun, ...],
    *,
    action: Any = None,
    commit: bool = True,
    **fields: Any,
) -> Baseline:
    """Write a baseline as `--mlperf-update` does, and commit it."""
    old = baselines.load(file)
    identity = fields.pop("identity", {"gpu": "H200", "power_limit_w": 700})
    # A record begins its own history: of another machine, or in a file of another case.
    kept = old if not fields or action or set(fields) == {"engine"} else None
    old_record = find_record(kept, identity) if kept else None
    entry = HistoryEntry(
        date=date,
        commit="9d0e77a",
        reason=f"trtllm {version}",
        action=action or ("replace" if old_record else "record"),
        runs=len(runs),
        old=geometric_means(old_record.runs) if old_record else {},
        new=geometric_means(runs),
    )
    fingerprint = {"engine": "trtllm", "engine.version": version, "engine.cuda": "12.9"}
    record = Record(
        identity=identity,
        target_qps=fields.pop("rate", 90.0),
        qps_source="suite",
        fingerprint={**fingerprint, **fields.pop("fingerprint", {})},
        runs=runs,
        minimum_detectable_change={next(iter(runs[0].metrics)): 0.02},
        history=(*(old_record.history if old_record else ()), entry),
    )
    baseline_fields: dict[str, Any] = {
        "round": "v4.1",
        "profile": "quick",
        "workload": "llama",
        "scenario": "Offline",
        "engine": "trtllm",
        "precision": "fp8",
        "accelerator": "H200",
        "records": (record,),
    }
    made = Baseline(**{**baseline_fields, **fields})
    baselines.save(file, made)
    if commit:
        git(Path(), "add", ".")
        git(Path(), "commit", "-q", "-m", f"trtllm {version}")
    return made


def history(versions: Iterable[tuple[str, str, float]] = VERSIONS) -> None:
    for date, version, value in versions:
        accept(FILE, date, version, measured(date, value))


def rows(table: str) -> list[list[str]]:
    """Return the cells of the table's rows."""
    lines = table.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("date"))
    return [line.split("  ") for line in lines[start + 1 : lines.index("", start)]]


def test_each_accepted_version_is_listed_with_its_gain(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide terminals show commits; a baseline that is not committed is the newest point."""
    history()
    output = say.ends(0, "history", CASE)
    assert output == (
        "llama-Offline-trtllm-fp8-H200\n\ndate        engine        tokens/s   change        "
        "  interval  says\n2026-03-02  trtllm 1.0.0    20,008\n2026-05-11  trtllm 1.1.0    "
        "21,493   +7.4 %    +7.0 to +7.9 %  better\n2026-08-20  trtllm 1.2.0    21,493   "
        "−0.0 %    −0.6 to +0.6 %  not proven\n2026-10-02  trtllm 1.2.1    18,976  −11.7 %  "
        "−12.3 to −11.1 %  worse\n\nnote      95 % confidence intervals, from all runs of "
        "both baselines\n          better and worse are corrected for the number of changes shown: "
        "if\n          nothing changed, 1 history of 20 contains one of these words\n          "
        "default noise, 0.7 % per run: this machine is not calibrated\ntotal     tokens/s "
        "−5.2 % (−5.7 to −4.6 %), worse: trtllm 1.0.0 → trtllm 1.2.1,\n          2026-03-02 "
        "to 2026-10-02\n"
    )

    accept(FILE, "2026-11-01", "1.3.0", measured("2026-11-01", 19_500.0), commit=False)
    monkeypatch.setenv("COLUMNS", "120")
    _, output = say("history", CASE)
    commits = git(here, "log", "--format=%h", "--abbrev=9", "--reverse").split()
    assert [row[1] for row in rows(output)] == [*commits, "not committed"]


def test_a_baseline_of_one_session_has_a_note_that_it_bounds_little(here: Path, say: Say) -> None:
    for date, name, value in (VERSIONS[0], ("2026-05-11", "1.1.0", 20_600.0)):
        runs = measured(date, value)
        accept(FILE, date, name, tuple(replace(run, session=date) for run in runs))
    _, output = say("history", CASE)
    assert rows(output)[1][-1] == "not proven"
    assert "with fewer than 4 sessions in both baselines the variation" in one_line(output)


def test_a_case_is_named_by_its_file_or_a_part_of_its_id(here: Path, say: Say) -> None:
    history(VERSIONS[:2])
    for name in (FILE, "llama", "OFFLINE-TRTLLM"):
        assert say("history", name) == say("history", CASE)
    assert " samples/s " in say("history", CASE, "--metric", "throughput")[1].splitlines()[2]
    assert say("history", CASE, "--metric", "latency_p50") == (
        2,
        f"pytest-mlperf: no baseline of {CASE} has latency_p50; known: tokens_per_second, "
        "throughput\n",
    )


def test_a_folder_below_the_top_of_the_repository_or_outside_of_it_will_do(
    here: Path, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a repository there are no baselines, but a file may be named."""
    for number in (0, 1):
        version(number, Path("project") / FILE)
    monkeypatch.chdir(here / "project")
    code, output = say("history", "llama")
    assert (code, len(rows(output))) == (0, 2)
    (tmp_path / "r.json").write_bytes(FILE.read_bytes())
    monkeypatch.chdir(tmp_path)
    code, output = say("history", "r.json")
    assert (code, len(rows(output))) == (0, 2)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert say("history", "x") == (
        2,
        "pytest-mlperf: no case 'x' with a baseline in git or a session here; known: none\n",
    )


def test_appended_untouched_and_damaged_records_add_no_version(here: Path, say: Say) -> None:
    first = measured("2026-03-02", 20_000.0)
    accept(FILE, "2026-03-02", "1.0.0", first[:6])
    accept(FILE, "2026-03-09", "1.0.0", first, action="append")
    FILE.write_text(f"{FILE.read_text('utf-8')}\n", "utf-8")
    git(here, "commit", "-q", "-a", "-m", "a blank line")
    version(1)
    _, output = say("history", CASE)
    assert [row[0] for row in rows(output)] == ["2026-03-09", "2026-05-11"]
    whole = FILE.read_bytes()
    FILE.write_text("{}", "utf-8")
    git(here, "commit", "-q", "-a", "-m", "damaged")
    FILE.write_bytes(whole)
    version(2)
    output = say.ends(0, "history", CASE)
    assert len(rows(output)) == 3
    assert f":{FILE}: schema is None" in one_line(output)


def test_where_git_has_no_runs_the_files_own_history_gives_the_change(
    here: Path, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shallow clone has one commit; the record's history has the means of the earlier ones."""
    history()
    git(here, "clone", "-q", "--depth", "1", f"file://{here}", str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    output = say.ends(0, "history", CASE)
    assert [row[-1].strip() for row in rows(output)][1:] == ["runs missing"] * 3
    assert "+7.4 %" in output
    assert " to −" not in output
    assert "git fetch --unshallow" in one_line(output)
    assert "total     tokens/s −5.2 %: not known → trtllm 1.2.1" in output


NO_RATIO: list[tuple[dict[str, Any], str]] = [
    (
        {"identity": {"gpu": "H200", "power_limit_w": 500}},
        "other hardware: power_limit_w 700 → 500",
    ),
    ({"fingerprint": {"division": "open"}}, "division differs: closed → open"),
    ({"accelerator": "8xH200"}, "number of accelerators differs: 1 → 8"),
    ({"profile": "official"}, "profile differs: quick → official"),
    ({"scenario": "Server"}, "scenario differs: Offline → Server"),
    (
        {"name": "samples_per_joule"},
        "metric differs: the baseline of 2026-05-11 has no samples/J; it has tokens/s, samples/s",
    ),
]


def test_a_ratio_of_incomparable_sides_is_refused(here: Path, say: Say) -> None:
    """The step is refused with the reason, and the total starts after it."""
    history(VERSIONS[:2])
    for number, (changed_fields, reason) in enumerate(NO_RATIO):
        git(here, "checkout", "-q", "-B", f"other{number}", "main")
        fields = {**changed_fields}
        name = fields.pop("name", "tokens_per_second")
        for date, release, value in (VERSIONS[2], ("2026-10-02", "1.2.1", 22_000.0)):
            accept(FILE, date, release, measured(date, value, name=name), **fields)
        output = say.ends(0, "history", FILE)
        text = one_line(output)
        assert f"no ratio 2026-05-11 to 2026-08-20: {reason}" in text
        expected = 4 if "metric" in reason else 2
        assert text.count("no ratio") == expected, "one a row, one a reason"
        assert "better: trtllm 1.2.0 → trtllm 1.2.1" in text
        assert "2026-08-20 to 2026-10-02; not comparable: 2 earlier baselines" in text
        assert widest(output) <= 80


def test_renamed_files_are_followed(here: Path, say: Say) -> None:
    """The engine's entry was renamed; the file moved; the case is the same but for its name."""
    history(VERSIONS[:2])
    renamed = FILE.with_name("Offline.tensorrt-llm.fp8.json")
    git(here, "mv", str(FILE), str(renamed))
    baseline = baselines.load(renamed)
    assert baseline is not None
    baselines.save(renamed, replace(baseline, engine="tensorrt-llm"))
    git(here, "commit", "-q", "-a", "-m", "another name")
    version(2, renamed, engine="tensorrt-llm")
    _, output = say("history", "tensorrt")
    assert [row[0] for row in rows(output)] == [date for date, *_ in VERSIONS[:3]]
    assert "no ratio" not in output


def test_files_are_one_history_where_they_are_named_together(here: Path, say: Say) -> None:
    """Each version may have an engine entry of its own; two counts of GPUs have no ratio.

    A new file that is like another has no history of it.
    """
    other = FILE.with_name("Offline.trtllm-next.fp8.json")
    eight = Path("baselines/8xH200/quick/llama/Offline.trtllm.fp8.json")
    version(0)
    version(1, other, engine="trtllm-next")
    version(1, eight, accelerator="8xH200")
    output = say.ends(0, "history", CASE, "llama-Offline-trtllm-next-fp8-H200")
    assert "no ratio" not in output
    assert "better: trtllm 1.0.0 → trtllm 1.1.0" in one_line(output)
    assert len(rows(say("history", other)[1])) == 1
    output = say.ends(2, "history", FILE, eight)
    assert "%" not in output
    assert "number of accelerators differs: 1 → 8" in output
    assert "total     the newest baseline cannot be compared" in output


def test_a_name_that_is_not_clear_lists_the_candidates(here: Path, say: Say) -> None:
    version(0)
    other = Path("baselines/H200/official/llama/Offline.trtllm.fp8.json")
    version(1, other, profile="official")
    fits = f"pytest-mlperf: {CASE} has 2 baseline files, name one: {other}, {FILE}\n"
    none = "pytest-mlperf: no case 'bert' with a baseline in git or a session here"
    assert say("history", "llama") == (2, fits)
    assert say("history", "bert") == (2, f"{none}; known: {CASE}\n")


def test_one_recorded_baseline_of_a_real_session_has_nothing_before_it(lab: Lab, say: Say) -> None:
    output = say.ends(0, "history", LAB_CASE)
    assert [row[2].strip() for row in rows(output)] == ["acme 1.0"]
    baselines, _, sessions = output.partition("\nsessions  ")
    assert baselines.endswith("total     one accepted baseline: nothing to compare it with yet\n")
    assert "3 sessions" in one_line(sessions)
