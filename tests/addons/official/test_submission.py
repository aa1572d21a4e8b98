"""Export results as a submission; MLCommons' own checker judges it and damaged copies of it.

The checker runs if MLPERF_INFERENCE names a checkout of mlcommons/inference that has its tag v4.1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.official.submission.layout import DETAIL_LOG, Leaf
from pytest_mlperf.addons.official.submission.tree import CUT_MARK, KEPT_LOG_BYTES, truncated
from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.stores.atomic import PLACE, write_folder
from pytest_mlperf.stores.results import read_results, write_results
from tests import forked
from tests.cli import volumes
from tests.cli.lab import LIGHT, ROOT
from tests.cli.text import Say, differing, finished, one_line
from tests.shared import once

LEAF = Path("closed/Acme/results/box/3d-unet-99/Offline")
CHECKOUT = os.environ.get("MLPERF_INFERENCE", "")


def filled(folder: Path, **values: object) -> None:
    """Fill in a form as a person does."""
    for name in ("system.json", "implementation.json"):
        table = json.loads((folder / name).read_text("utf-8"))
        blanks = {k: "N/A" for k, v in table.items() if str(v).startswith("FILL IN")}
        blanks |= {"status": "available"} if "status" in table else {}
        table |= blanks | {k: v for k, v in values.items() if k in table}
        (folder / name).write_text(json.dumps(table), "utf-8")
    (folder / "README.md").write_text("Run it.\n", "utf-8")
    (folder / "calibration.md").write_text("Nothing was quantised.\n", "utf-8")


def measure(path: Path, round_name: str) -> Path:
    """Run a quick suite of 43 volumes with its compliance tests; return the results file."""
    (path / "suites").mkdir(parents=True)
    more = 'min_duration = "400ms"'
    names = {"module": "volumes", "engine": "Segmenter", "profile": "quick", "rate": 300}
    text = volumes.SUITE.format(round=round_name, more=more, **names)
    (path / "suites/u.mlperf.toml").write_text(text, "utf-8")
    shutil.copy(volumes.__file__, path / "volumes.py")
    command = [sys.executable, "-m", "pytest", *LIGHT, "suites", "-omlperf_control=off"]
    ours = {"PYTEST_MLPERF_LEASES": str(path), "PYTHONPATH": str(ROOT), "VOLUME_S": "0.0032"}
    dropped = ("CI", "PYTEST_XDIST_WORKER")
    environment = {key: value for key, value in os.environ.items() if key not in dropped} | ours
    with pytest.MonkeyPatch.context() as patch:
        forked.use(patch)
        done = finished(*command, "--mlperf-compliance", cwd=path, env=environment)
    files = list(path.glob(".mlperf/runs/*/results.json"))
    assert len(files) == 1, done.stdout + done.stderr
    return files[0]


INIT = ("submission", "init", "form", "--submitter", "Acme", "--system", "box")


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick session with its compliance tests."""

    def make(path: Path) -> Path:
        measure(path, "v6.1")
        return path

    return once(tmp_path_factory, "submission", make)


@pytest.fixture
def project(measured: Path, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it with a form that is filled in; the results are r.json."""
    shutil.copytree(measured / ".mlperf", tmp_path / ".mlperf")
    monkeypatch.chdir(tmp_path)
    (file,) = tmp_path.glob(".mlperf/runs/*/results.json")
    file.rename(file.with_name("r.json"))
    (tmp_path / "r.json").symlink_to(file.with_name("r.json"))
    assert say(*INIT)[0] == 0
    filled(tmp_path / "form")
    return tmp_path


EXPORT = ("submission", "export", "r.json", "--form", "form", "--round", "v6.1", "-o", "tree")


CONF = """\
import mlperf_loadgen as lg, sys
settings = lg.TestSettings()
for path in sys.argv[1:]:
    assert settings.FromConfig(path, "3d-unet", "Offline", 2) == 0
print(settings.offline_expected_qps, settings.min_query_count, settings.min_duration_ms,
      settings.performance_sample_count_override, settings.sample_concatenate_permutation)
"""


Change = Callable[[CaseResult], CaseResult | None]


def changed(change: Change) -> None:
    """Change each test of the results, or leave it out."""
    path = Path("r.json").resolve()
    results: Results = read_results(path)
    cases = [one for one in map(change, results.cases) if one is not None]
    write_results(path, replace(results, cases=tuple(cases)))


@pytest.mark.process
def test_a_rehearsal_has_the_logs_and_lists_violations(project: Path, say: Say) -> None:
    """LoadGen reads the settings of the run from the files of the tree."""
    code, output = say(*EXPORT, "--rehearsal")
    assert [line for line in output.splitlines() if line.startswith("not allowed: ")] == [
        f"not allowed: 3d-unet-99 Offline{run}: min_duration_ms is 0; it must be at least 600,000"
        for run in ("", ", TEST01")
    ]
    assert code == 0
    assert "a rehearsal, not a submission" in output
    assert (project / "tree/REHEARSAL.md").is_file()
    (run,) = project.glob(".mlperf/runs/*/3d-unet-99-*.1/performance")
    leaf = project / "tree" / LEAF
    for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt"):
        assert (leaf / "performance/run_1" / name).read_bytes() == (run / name).read_bytes()
    (log,) = project.glob(".mlperf/runs/*/*/accuracy/block-0/mlperf_log_accuracy.json")
    digest = hashlib.sha256(log.read_bytes()).hexdigest()
    assert (leaf / "accuracy/accuracy.txt").read_text("utf-8") == (
        f"Accuracy: mean = 1\nhash={digest}\n"
    )
    below = {p.relative_to(leaf).as_posix() for p in leaf.rglob("*") if p.is_file()}
    assert below == {
        *(f"performance/run_1/mlperf_log_{name}.txt" for name in ("detail", "summary")),
        *(f"accuracy/mlperf_log_{name}.txt" for name in ("detail", "summary")),
        "accuracy/accuracy.txt",
        "accuracy/mlperf_log_accuracy.json",
        *("measurements.json", "user.conf", "mlperf.conf", "README.md"),
        *("TEST01/verify_accuracy.txt", "TEST01/verify_performance.txt"),
        *(f"TEST01/performance/run_1/mlperf_log_{name}.txt" for name in ("detail", "summary")),
        "TEST01/accuracy/accuracy.txt",
        "TEST01/accuracy/mlperf_log_accuracy.json",
    }
    assert "TEST PASS" in (leaf / "TEST01/verify_accuracy.txt").read_text("utf-8")
    assert (project / "tree/closed/Acme/documentation/calibration.md").is_file()
    assert (project / "tree/closed/Acme/src/README.md").is_file()

    (file,) = project.glob(".mlperf/runs/*/3d-unet-99-*.1/performance/run.json")
    loadgen_settings = json.loads(file.read_text("utf-8"))["settings"]["loadgen"]
    files = [str(leaf / name) for name in ("mlperf.conf", "user.conf")]
    rate, *settings, permutation = finished(sys.executable, "-c", CONF, *files).stdout.split()
    assert float(rate) == pytest.approx(loadgen_settings["offline_expected_qps"])
    names = ("min_query_count", "min_duration_ms", "performance_sample_count_override")
    assert settings == [str(loadgen_settings[name]) for name in names]
    assert permutation == str(loadgen_settings["sample_concatenate_permutation"])


def edited(path: Path, **values: object) -> None:
    """Change values of a JSON file, or of LoadGen's detail log."""
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        path.write_text(json.dumps(json.loads(text) | values), "utf-8")
        return
    for key, value in values.items():
        pattern = rf'(?<="key": "{key}", "value": )[^,]+|(?<="{key}": )[^,]+'
        text, count = re.subn(pattern, json.dumps(value), text)
        assert count, f"{path} has no {key}"
    path.write_text(text, "utf-8")


def official() -> None:
    """Change the logs of a quick session into those of official runs of 600 s."""
    for log in Path().glob(f".mlperf/runs/*/*/performance/{DETAIL_LOG}"):
        edited(log, effective_min_duration_ms=600_000, result_validity="VALID")
    for file in Path().glob(".mlperf/runs/*/*/verify_performance.txt"):
        file.write_text("TEST PASS\n", "utf-8")
    for file in Path().glob(".mlperf/runs/*/*/performance/run.json"):
        text = file.read_text("utf-8")
        setting = '"sample_concatenate_permutation": '
        file.write_text(text.replace(f"{setting}false", f"{setting}true"), "utf-8")
    changed(lambda case_result: replace(case_result, profile="official"))


NOT_ALLOWED: Mapping[str, tuple[object, str]] = {
    "effective_min_duration_ms": (599_999, "min_duration_ms is 599999; it must be at least"),
    "effective_samples_per_query": (42, "samples_per_query is 42; it must be at least 43"),
    "effective_min_query_count": (0, "min_query_count is 0; it must be at least 1"),
    "effective_performance_sample_count": (42, "performance_sample_count is 42; it must be at"),
    "effective_scenario": ("Server", "the log is of scenario Server, not Offline"),
    "result_validity": ("INVALID", "LoadGen reports the run INVALID: LoadGen gives no reason"),
    "num_errors": (3, "LoadGen logged 3 errors, first: not named"),
}
"""What no performance run may say, and what export says of it."""


@pytest.mark.process
def test_export_refuses_logs_that_no_checker_can_read(project: Path, say: Say) -> None:
    """And runs that break the rules of performance."""
    official()
    for run, title in (("1", ""), ("TEST01.2", ", TEST01")):
        (log,) = project.glob(f".mlperf/runs/*/*.{run}/performance/{DETAIL_LOG}")
        text = log.read_text("utf-8")
        for key, (value, words) in NOT_ALLOWED.items():
            edited(log, **{key: value})
            code, output = say(*EXPORT)
            log.write_text(text, "utf-8")
            assert code == 1
            assert output.startswith(f"not allowed: 3d-unet-99 Offline{title}: {words}")
            assert output.count("not allowed: ") == 1
            assert "\nnothing was written" in output
            assert not (project / "tree").exists()

    (answers,) = project.glob(f".mlperf/runs/*/*/accuracy/block-0/{DETAIL_LOG}")
    edited(answers, is_error=True)
    edited(project / "form/system.json", accelerators_per_node="many", cooling="FILL IN")
    (project / "form/src/a b.py").write_text("", "utf-8")
    output = say.ends(1, *EXPORT)
    assert "not allowed: 1 blank left: grep -r 'FILL IN' form\n" in output
    assert "accelerators_per_node is 'many'; it must be a whole number" in output
    assert "closed/Acme/src/a b.py: rename it, names must have no spaces" in output
    assert "3d-unet-99 Offline, accuracy run: LoadGen logged" in output
    assert output.count("not allowed: ") == 4


@pytest.mark.process
def test_audits_have_the_answers_that_their_round_asks_for(project: Path, say: Say) -> None:
    """Up to v5.1 those of closed; TEST06 has its whole log of answers and no others."""

    def as_test06(case_result: CaseResult) -> CaseResult:
        kind = "TEST06" if case_result.verdict.kind == "TEST01" else case_result.verdict.kind
        return replace(case_result, verdict=replace(case_result.verdict, kind=Kind(kind)))

    whole = Path("r.json").read_bytes()
    changed(as_test06)
    assert say(*EXPORT[:-1], "rehearsal", "--rehearsal")[0] == 0
    files = [path for path in Path("rehearsal", LEAF, "TEST06").rglob("*") if path.is_file()]
    names = {"mlperf_log_accuracy.json", "verify_accuracy.txt", "verify_performance.txt"}
    assert {path.name for path in files} == names

    Path("r.json").resolve().write_bytes(whole)
    official()
    (log,) = project.glob(".mlperf/runs/*/*.TEST01.2/performance/mlperf_log_accuracy.json")
    log.rename(project / "log")
    assert say(*EXPORT)[0] == 0
    changed(lambda case_result: replace(case_result, round="v4.1"))
    v4 = (*EXPORT[:5], "--round", "v4.1", "-o", "other")
    assert "TEST01: its run's folder " in say.ends(1, *v4)
    filled(project / "form", division="open")
    assert say(*v4)[0] == 0
    below = {path.name for path in (project / "other/open/Acme").iterdir()}
    assert below == {"code", "compliance", "documentation", "measurements", "results", "systems"}


def without(kind: str) -> Change:
    return lambda case_result: None if case_result.verdict.kind == kind else case_result


def judged(**fields: Any) -> Change:
    return lambda case_result: replace(case_result, verdict=replace(case_result.verdict, **fields))


def partly(case_result: CaseResult) -> CaseResult:
    accuracy = case_result.verdict.accuracy
    part = replace(accuracy, full=False, samples=10) if accuracy else None
    return replace(case_result, verdict=replace(case_result.verdict, accuracy=part))


BAD: list[tuple[Change, str]] = [
    (lambda case_result: replace(case_result, handicap=0.5), "was slowed by a handicap"),
    (lambda case_result: replace(case_result, pretended=True), "only pretends its accelerator"),
    (lambda case_result: replace(case_result, round="v5.1"), "was measured by the rules of v5.1"),
    (
        lambda case_result: replace(case_result, division="open"),
        "a suite of the open division is in these results",
    ),
    (without("performance"), "these results have no performance test"),
    (judged(accuracy=None), "has no accuracy run: a submission needs one over the whole data set"),
    (partly, "has an accuracy run over 10 of 43 samples"),
    (
        judged(runs=(), headline="LoadGen says INVALID"),
        "has no run that may be judged: LoadGen says INVALID; measure again",
    ),
]


@pytest.mark.process
def test_runs_that_no_submission_may_contain_are_one_error(project: Path, say: Say) -> None:
    """And runs that are cut, or not here."""
    whole = Path("r.json").read_bytes()
    for change, words in BAD:
        changed(change)
        assert differing(say, [((*EXPORT, "--rehearsal"), 2, (words,))]) == []
        assert not (project / "tree").exists()
        Path("r.json").resolve().write_bytes(whole)
    (detail,) = project.glob(".mlperf/runs/*/3d-unet-99-*.1/performance/mlperf_log_detail.txt")
    detail.write_text(detail.read_text("utf-8")[:2000], "utf-8")
    assert "mlperf_log_detail.txt" in say.ends(2, *EXPORT, "--rehearsal")
    shutil.rmtree(detail.parents[1])
    code, output = say(*EXPORT, "--rehearsal")
    assert (code, "put the run's folder back as" in one_line(output)) == (2, True)
    assert not (project / "tree").exists()


@pytest.mark.process
def test_bad_input_is_one_error_that_says_what_to_do(project: Path, say: Say) -> None:
    def error(*arguments: str) -> str:
        output = say.ends(2, *arguments)
        assert not (project / "tree").exists()
        return one_line(output)

    assert "is of the quick profile" in error(*EXPORT)
    assert "there is no round 'v9.9'" in error(*EXPORT, "--round", "v9.9")
    assert "name the round" in error("submission", "check", "form")
    check = ("submission", "check", "form", "--round", "v6.1")
    assert "git clone https://github.com/mlcommons/inference and add --checker" in error(*check)
    assert "git clone --branch v4.1 https" in error(*check[:4], "v4.1")
    assert "form has no results" in error(*check, "--checker", "form")
    assert "add --form with the folder from" in error(*EXPORT[:3], "--round", "v6.1")
    assert "form exists; nothing was written" in error(*INIT)
    assert "add --submitter and --system, used in" in error("submission", "init", "other")
    assert "this machine has no H200" in error(*INIT[:2], "o", *INIT[3:], "--accelerator", "H200")
    shutil.copy(Path("r.json").resolve(), Path("r.json").resolve().with_name("s.json"))
    twice = (str(Path("r.json").resolve().with_name("s.json")), *EXPORT[3:], "--rehearsal")
    assert "3d-unet-99 Offline occurs twice" in error(*EXPORT[:3], *twice)
    (subject, *_) = (one.verdict.subject for one in read_results(Path("r.json").resolve()).cases)
    assert subject is not None
    moved = replace(subject, identity={**subject.identity, "cpu": "another"})
    changed(judged(subject=moved))
    assert "are of two systems: cpu is" in error(*EXPORT[:3], *twice)
    filled(project / "form", submitter="Acme Inc")
    assert "submitter is 'Acme Inc', which is not a folder name" in error(*EXPORT, "--rehearsal")
    filled(project / "form", submitter="Acme", division="sideways")
    assert "division is 'sideways'; set closed or open" in error(*EXPORT, "--rehearsal")


def test_init_marks_facts_that_the_machine_does_not_report(here: Path, say: Say) -> None:
    code, output = say(*INIT)
    system = json.loads((here / "form/system.json").read_text("utf-8"))
    assert code == 0
    assert "blanks to fill in, each begins with FILL IN" in output
    assert system["division"] == "closed"
    assert system["submitter"] == "Acme"
    assert system["accelerators_per_node"] == "0"
    assert system["host_processor_core_count"].isdigit()
    assert system["cooling"].startswith("FILL IN")


def test_a_long_log_keeps_its_ends_and_the_hash_of_the_whole(tmp_path: Path) -> None:
    for size in (0, 2 * KEPT_LOG_BYTES, 2 * KEPT_LOG_BYTES + 1, 50_000):
        whole = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        (tmp_path / "log").write_bytes(whole)
        cut, digest = truncated(tmp_path / "log")
        assert digest == hashlib.sha256(whole).hexdigest()
        assert cut == (
            whole
            if size <= 2 * KEPT_LOG_BYTES
            else whole[:KEPT_LOG_BYTES] + CUT_MARK + whole[-KEPT_LOG_BYTES:]
        )


HALF = """\
import sys
from collections.abc import Mapping
from pathlib import Path
from pytest_mlperf.stores.atomic import write_folder

class Half(dict):
    def items(self):
        yield "first", b"1"
        print("half", flush=True)
        sys.stdin.read()

write_folder(Path(sys.argv[1]), Half())
"""


@pytest.mark.process
def test_an_export_that_is_killed_leaves_no_half_tree(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HALF, str(tmp_path / "tree")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert not (tmp_path / "tree").exists()
    write_folder(tmp_path / "tree", {"a/b": b"whole"})
    assert [p.name for p in tmp_path.iterdir() if p.name != PLACE] == ["tree"]
    assert not (tmp_path / PLACE).exists()
    assert (tmp_path / "tree/a/b").read_bytes() == b"whole"


HASH = f"hash={'0' * 64}\n"

DAMAGES: list[tuple[str, object, int, int]] = [
    ("{run}/mlperf_log_detail.txt", None, 3, 1),
    ("{run}/mlperf_log_detail.txt", "no log\n", 3, 1),
    ("{run}/mlperf_log_summary.txt", None, 0, 1),
    ("{run}/further.txt", "x", 0, 1),
    ("{run}/mlperf_log_detail.txt", {"result_validity": "INVALID"}, 0, 1),
    ("{run}/mlperf_log_detail.txt", {"is_error": True}, 0, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_min_duration_ms": 1000}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_min_query_count": 0}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_samples_per_query": 10}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_qsl_rng_seed": 1}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_sample_index_rng_seed": 1}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_schedule_rng_seed": 1}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_scenario": "Server"}, 1, 1),
    ("{run}/mlperf_log_detail.txt", {"effective_performance_sample_count": 10}, 1, 1),
    ("{answers}/mlperf_log_detail.txt", None, 3, 1),
    ("{answers}/mlperf_log_detail.txt", {"effective_test_mode": "PerformanceOnly"}, 0, 0),
    ("{answers}/mlperf_log_detail.txt", {"effective_qsl_rng_seed": 1}, 0, 0),
    ("{answers}/mlperf_log_detail.txt", {"effective_accuracy_sample_count": 42}, 1, 0),
    ("{answers}/mlperf_log_detail.txt", {"is_error": True}, 1, 1),
    ("{answers}/mlperf_log_summary.txt", None, 0, 1),
    ("{answers}/mlperf_log_accuracy.json", None, 1, 1),
    ("{answers}/mlperf_log_accuracy.json", "x" * 20_000, 1, 1),
    ("{answers}/accuracy.txt", None, 1, 1),
    ("{answers}/accuracy.txt", "Accuracy: mean = 1\n", 1, 1),
    ("{answers}/accuracy.txt", HASH, 1, 1),
    ("{answers}/accuracy.txt", f"Accuracy: mean = 0.853082\n{HASH}", 1, 1),
    ("{answers}/accuracy.txt", f"Accuracy: mean = 0.853083\n{HASH}", 0, 0),
    ("{answers}/accuracy.txt", "Accuracy: mean = 1\nhash=1\n", 0, 0),
    ("{system}", None, 3, 1),
    ("{system}", {"status": "soon"}, 1, 1),
    ("{system}", {"cooling": ""}, 1, 1),
    ("{system}", {"accelerators_per_node": "many"}, 3, 0),
    ("{system}", {"sw_notes": 8, "hw_notes": "x"}, 3, 3),
    ("{system}", {"status": 8}, 1, 3),
    ("{system}", {"system_type": "desk"}, 3, 1),
    ("{system}", {"submitter": "Emca"}, 1, 1),
    ("{system}", {"division": "open"}, 1, 1),
    ("{system}", "{}", 3, 3),
    ("{implementation}", None, 1, 3),
    ("{implementation}", {"retraining": ""}, 1, 1),
    ("{implementation}", "{}", 1, 1),
    ("{measurements}/user.conf", None, 1, 1),
    ("{measurements}/README.md", None, 1, 1),
    ("{src}", None, 1, 1),
    ("{top}/documentation", None, 0, 0),
    ("{top}/documentation/calibration.md", None, 0, 1),
    ("{top}/empty", "", 0, 1),
    ("{top}/a b", "x", 0, 1),
    ("{audit}", None, 1, 1),
    ("{audit}/verify_accuracy.txt", None, 1, 1),
    ("{audit}/verify_accuracy.txt", "TEST FAIL\n", 1, 1),
    ("{audit}/verify_performance.txt", None, 1, 1),
    ("{audit}/verify_performance.txt", "TEST FAIL\n", 1, 1),
    ("{audit}/accuracy", None, 0, 1),
    ("{audited}/mlperf_log_summary.txt", None, 1, 1),
    ("{audited}/mlperf_log_detail.txt", None, 1, 1),
    ("{audited}/mlperf_log_detail.txt", {"effective_min_duration_ms": 1}, 1, 1),
    ("{audited}/mlperf_log_detail.txt", {"effective_min_query_count": 0}, 1, 1),
    ("{audited}/mlperf_log_detail.txt", {"effective_samples_per_query": 9}, 1, 1),
    ("{audited}/mlperf_log_detail.txt", {"effective_scenario": "Server"}, 1, 3),
    ("{audited}/mlperf_log_detail.txt", {"effective_performance_sample_count": 9}, 1, 1),
    ("{audited}/mlperf_log_detail.txt", {"effective_qsl_rng_seed": 1}, 1, 1),
    ("{audited}/mlperf_log_detail.txt", {"result_validity": "INVALID"}, 0, 1),
    ("{test05}", None, 0, 1),
    ("{test05}/performance/run_1/mlperf_log_detail.txt", {"effective_qsl_rng_seed": 1}, 0, 1),
]
"""A file or folder; its new content, new values, or None if it is removed; the exit codes of
`submission check` by the checkers of v6.1 and v4.1."""


def damage(path: Path, change: object) -> None:
    """Remove a file or folder, write it, or change its values."""
    match change:
        case None if path.is_dir():
            shutil.rmtree(path)
        case None:
            path.unlink()
        case Mapping():
            edited(path, **change)
        case "":
            path.mkdir()
        case _:
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(change), "utf-8")


def checkout(folder: Path, round_name: str) -> Path:
    """Return a checkout with the checker of a round; that of v4.1 is taken from its tag."""
    if round_name != "v4.1":
        return Path(CHECKOUT)
    folder.mkdir()
    for name in ("submission_checker.py", "log_parser.py"):
        command = ["git", "-C", CHECKOUT, "show", f"v4.1:tools/submission/{name}"]
        (folder / name).write_bytes(subprocess.check_output(command))
    return folder


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not CHECKOUT, reason="MLPERF_INFERENCE names no checkout")
@pytest.mark.parametrize("round_name", ["v6.1", "v4.1"])
def test_mlcommons_own_checker_judges_the_tree_and_damaged_copies(
    round_name: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = measure(tmp_path / "measured", round_name)
    monkeypatch.chdir(tmp_path / "measured")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Path("r.json").symlink_to(file)
    official()
    assert say(*INIT)[0] == 0
    filled(Path("form"))
    output = say.ends(0, *EXPORT[:2], file, *EXPORT[3:6], round_name, *EXPORT[7:])
    leaf = Leaf(
        round=round_name,
        top="closed/Acme",
        system="box",
        benchmark="3d-unet-99",
        scenario=Scenario.OFFLINE,
    )
    places = {
        "top": leaf.top,
        "system": leaf.description,
        "run": leaf.performance,
        "answers": leaf.accuracy,
        "measurements": leaf.measurements,
        "implementation": leaf.implementation("standin"),
        "src": leaf.source("standin"),
        "audit": leaf.audit("TEST01"),
        "audited": f"{leaf.audit('TEST01')}/performance/run_1",
        "test05": leaf.audit("TEST05"),
    }
    checker = checkout(tmp_path / "checker", round_name)
    check = ("submission", "check", "tree", "--round", round_name, "--checker", checker)
    code, output = say(*check)
    assert (code, output.splitlines()[-1]) == (0, "SUMMARY: submission looks OK"), output
    expected, codes = {}, {}
    for path_in_tree, change, *both in DAMAGES:
        if "{test05}" in path_in_tree and round_name != "v4.1":
            continue
        shutil.copytree("tree", "whole")
        damage(Path("tree", path_in_tree.format(**places)), change)
        title = f"{path_in_tree}: {change}"
        expected[title], codes[title] = both[round_name == "v4.1"], say(*check)[0]
        shutil.rmtree("tree")
        Path("whole").rename("tree")
    assert codes == expected
