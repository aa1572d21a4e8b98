"""Results as a submission: a tree of what LoadGen wrote, or one error; MLCommons' checker takes it.

The checker itself judges where MLPERF_INFERENCE names a checkout of mlcommons/inference; that takes
a real run of ten minutes for each round.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.reports.export.submission.tree import CUT, KEPT, truncated
from pytest_mlperf.stores.atomic import PLACE, write_folder
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli import volumes
from tests.cli.lab import LIGHT, ROOT
from tests.shared import once

Say = Callable[..., tuple[int, str]]

LEAF = Path("closed/Acme/results/box/3d-unet-99/Offline")
CHECKOUT = os.environ.get("MLPERF_INFERENCE", "")


def measure(path: Path, round_name: str, profile: str, rate: float, more: str = "") -> Path:
    """Run a suite of 43 volumes with its compliance tests; return the results file."""
    (path / "suites").mkdir(parents=True)
    text = volumes.SUITE.format(
        round=round_name,
        profile=profile,
        module="volumes",
        engine="Segmenter",
        rate=rate,
        more=more,
    )
    (path / "suites/u.mlperf.toml").write_text(text, "utf-8")
    shutil.copy(volumes.__file__, path / "volumes.py")
    return session(path, {"VOLUME_S": f"{0.97 / rate}"})


def session(path: Path, more: dict[str, str]) -> Path:
    command = [sys.executable, "-m", "pytest", *LIGHT, "suites", "-omlperf_control=off"]
    command += ["--mlperf-compliance"]
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(path), "PYTHONPATH": str(ROOT), **more}
    environment.pop("CI", None)
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=path, env=environment, capture_output=True, text=True, check=False
    )
    files = list(path.glob(".mlperf/runs/*/results.json"))
    assert len(files) == 1, done.stdout + done.stderr
    return files[0]


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


INIT = ("submission", "init", "form", "--submitter", "Acme", "--system", "box")


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick session with its compliance tests."""

    def make(path: Path) -> Path:
        measure(path, "v6.1", "quick", 300, 'min_duration = "400ms"')
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


def changed(change: Callable[[CaseResult], CaseResult | None]) -> None:
    """Change each test of the results, or leave it out."""
    path = Path("r.json").resolve()
    results: Results = read_results(path)
    cases = [one for one in map(change, results.cases) if one is not None]
    write_results(path, replace(results, cases=tuple(cases)))


@pytest.mark.process
def test_a_rehearsal_has_what_loadgen_wrote_and_says_what_would_be_refused(
    project: Path, say: Say
) -> None:
    code, shown = say(*EXPORT, "--rehearsal")

    refused = [line for line in shown.splitlines() if line.startswith("would be refused: ")]
    by_rule = {line.split(": ")[1] for line in refused}
    # What speed a busy machine has is no matter here.
    assert by_rule - {"ComplianceCheck.compliance_performance_check"} == {
        "PerformanceCheck.min_duration_check"
    }
    assert code == 0
    assert "a rehearsal, and no submission" in shown
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
    code, again = say("submission", "check", "tree", "--round", "v6.1")
    assert code == 1
    assert [line for line in again.splitlines() if line.startswith("would be")] == refused


CONF = """\
import mlperf_loadgen as lg, sys
settings = lg.TestSettings()
for path in sys.argv[1:]:
    assert settings.FromConfig(path, "3d-unet", "Offline", 2) == 0
print(settings.offline_expected_qps, settings.min_query_count, settings.min_duration_ms,
      settings.performance_sample_count_override, settings.sample_concatenate_permutation)
"""


@pytest.mark.process
def test_loadgen_reads_the_settings_of_the_run_from_its_files(project: Path, say: Say) -> None:
    say(*EXPORT, "--rehearsal")
    (file,) = project.glob(".mlperf/runs/*/3d-unet-99-*.1/performance/run.json")
    told = json.loads(file.read_text("utf-8"))["settings"]["loadgen"]

    files = [str(project / "tree" / LEAF / name) for name in ("mlperf.conf", "user.conf")]
    shown = subprocess.run(
        [sys.executable, "-c", CONF, *files], capture_output=True, text=True, check=True
    ).stdout.split()

    assert float(shown[0]) == pytest.approx(told["offline_expected_qps"])
    assert [int(shown[1]), int(shown[2]), int(shown[3])] == [
        told["min_query_count"],
        told["min_duration_ms"],
        told["performance_sample_count_override"],
    ]
    assert shown[4] == str(told["sample_concatenate_permutation"])


@pytest.mark.process
def test_what_would_be_refused_is_said_and_nothing_is_written(project: Path, say: Say) -> None:
    changed(lambda one: replace(one, profile="official"))

    code, shown = say(*EXPORT)

    assert code == 1
    assert "PerformanceCheck.min_duration_check: closed/Acme/results/box/3d-unet-99" in shown
    assert "nothing was written" in shown
    assert not (project / "tree").exists()


def without(kind: str) -> Callable[[CaseResult], CaseResult | None]:
    def change(one: CaseResult) -> CaseResult | None:
        verdict = replace(one.verdict, accuracy=None) if kind == "accuracy" else one.verdict
        return None if one.verdict.kind == kind else replace(one, verdict=verdict)

    return change


def partly(one: CaseResult) -> CaseResult:
    accuracy = one.verdict.accuracy
    part = replace(accuracy, full=False, samples=10) if accuracy else None
    return replace(one, verdict=replace(one.verdict, accuracy=part))


def as_invalid(one: CaseResult) -> CaseResult:
    headline = "LoadGen says INVALID"
    return replace(one, verdict=replace(one.verdict, runs=(), headline=headline))


def moved(one: CaseResult) -> CaseResult:
    subject = one.verdict.subject
    assert subject is not None
    other = replace(subject, identity={**subject.identity, "cpu": "another"})
    return replace(one, verdict=replace(one.verdict, subject=other))


BAD: list[tuple[Callable[[CaseResult], CaseResult | None], str]] = [
    (lambda one: replace(one, handicap=0.5), "was slowed by a handicap"),
    (lambda one: replace(one, pretended=True), "only pretends its accelerator"),
    (lambda one: replace(one, round="v5.1"), "was measured by the rules of v5.1"),
    (lambda one: replace(one, division="open"), "a suite of the open division is in these results"),
    (without("performance"), "no performance test is in these results"),
    (without("accuracy"), "has no accuracy run: a submission needs one over the whole data set"),
    (partly, "has an accuracy run over 10 of 43 samples"),
    (as_invalid, "has no run that may be judged: LoadGen says INVALID; measure again"),
]


@pytest.mark.process
@pytest.mark.parametrize(("change", "words"), BAD)
def test_what_can_be_in_no_submission_is_one_error(
    change: Callable[[CaseResult], CaseResult | None],
    words: str,
    project: Path,
    say: Say,
) -> None:
    changed(change)

    code, shown = say(*EXPORT, "--rehearsal")

    assert code == 2
    assert words in " ".join(shown.split())
    assert not (project / "tree").exists()


@pytest.mark.process
def test_bad_input_is_one_error_that_says_what_to_do(project: Path, say: Say) -> None:
    def error(*arguments: str) -> str:
        code, shown = say(*arguments)
        assert code == 2
        assert not (project / "tree").exists()
        return " ".join(shown.split())

    assert "is of the quick profile" in error(*EXPORT)
    assert "there is no round 'v9.9'" in error(*EXPORT, "--round", "v9.9")
    assert "name the round" in error("submission", "check", "form")
    assert "no results are in this tree" in error("submission", "check", "form", "--round", "v6.1")
    assert "name the folder that submission init made" in error(*EXPORT[:3], "--round", "v6.1")
    assert "form exists; nothing was written" in error(*INIT)
    assert "--submitter and --system missing" in error("submission", "init", "other")
    assert "H200 is not here" in error(*INIT[:2], "o", *INIT[3:], "--accelerator", "H200")
    shutil.copy(Path("r.json").resolve(), Path("r.json").resolve().with_name("s.json"))
    twice = (str(Path("r.json").resolve().with_name("s.json")), *EXPORT[3:], "--rehearsal")
    assert "3d-unet-99 Offline is there twice" in error(*EXPORT[:3], *twice)
    changed(moved)
    assert "are of two systems: cpu is" in error(*EXPORT[:3], *twice)
    filled(project / "form", submitter="Acme Inc")
    assert "submitter is 'Acme Inc', which names a folder" in error(*EXPORT, "--rehearsal")
    filled(project / "form", submitter="Acme", division="sideways")
    assert "division is 'sideways'; it is closed or open" in error(*EXPORT, "--rehearsal")


@pytest.mark.process
def test_runs_that_are_gone_or_cut_are_one_error(project: Path, say: Say) -> None:
    (detail,) = project.glob(".mlperf/runs/*/3d-unet-99-*.1/performance/mlperf_log_detail.txt")
    detail.write_text(detail.read_text("utf-8")[:2000], "utf-8")
    code, shown = say(*EXPORT, "--rehearsal")
    assert (code, "mlperf_log_detail.txt" in shown) == (2, True)

    shutil.rmtree(detail.parents[1])
    code, shown = say(*EXPORT, "--rehearsal")
    assert (code, "the run's folder must be there" in " ".join(shown.split())) == (2, True)
    assert not (project / "tree").exists()


def test_init_marks_what_the_machine_does_not_tell(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = say(*INIT)

    system = json.loads((tmp_path / "form/system.json").read_text("utf-8"))
    assert code == 0
    assert "blanks to fill in, each begins with FILL IN" in shown
    assert system["division"] == "closed"
    assert system["submitter"] == "Acme"
    assert system["accelerators_per_node"] == "0"
    assert system["host_processor_core_count"].isdigit()
    assert system["cooling"].startswith("FILL IN")


@pytest.mark.parametrize("size", [0, 2 * KEPT, 2 * KEPT + 1, 50_000])
def test_a_long_log_keeps_its_ends_and_the_hash_of_the_whole(size: int, tmp_path: Path) -> None:
    whole = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "log").write_bytes(whole)

    cut, digest = truncated(tmp_path / "log")

    assert digest == hashlib.sha256(whole).hexdigest()
    assert cut == (whole if size <= 2 * KEPT else whole[:KEPT] + CUT + whole[-KEPT:])


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


# --- the tiny twins, and MLCommons' own checker ----------------------------------------------

TWINS = ("resnet50", "llama2-70b")


@pytest.mark.process
@pytest.mark.slow
def test_the_tiny_twins_rehearse_a_submission(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the checker refuses of them is what no twin can have: MLPerf's samples and seconds."""
    pytest.importorskip("onnxruntime", reason="needs pytest-mlperf[onnx]")
    pytest.importorskip("torch", reason="needs pytest-mlperf[lm]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    for name in TWINS:
        shutil.copytree(ROOT / "suites/tiny" / name, tmp_path / "suites" / name)
        text = (ROOT / f"suites/tiny/{name}.mlperf.toml").read_text("utf-8")
        head, _, rest = text.partition("[[scenarios]]")
        limits = rest[rest.index("\n[limits]") :] if "\n[limits]" in rest else ""
        offline = '[[scenarios]]\nname = "Offline"\nmin_duration = "2s"\n'
        (tmp_path / f"suites/{name}.mlperf.toml").write_text(head + offline + limits, "utf-8")
    results = session(tmp_path, {})
    assert say(*INIT, "--type", "edge")[0] == 0
    filled(tmp_path / "form")
    stands = ("tiny-resnet50=resnet50", "tiny-llama2-70b=llama2-70b-99")
    mapped = [word for pair in stands for word in ("--benchmark", pair)]

    code, shown = say(
        *("submission", "export", results, "--form", "form", "--round", "v4.1", "-o", "tree"),
        *mapped,
        "--rehearsal",
    )

    assert code == 0, shown
    rules = {
        line.split(": ")[1] for line in shown.splitlines() if line.startswith("would be refused")
    }
    assert {"check_performance_dir", "check_accuracy_dir", "check_results_dir"} <= rules
    assert "min_duration_ms is 0; at least 600,000 are needed" in shown
    assert "the accuracy run has 500 samples; the data set has 50,000" in shown
    top = tmp_path / "tree/closed/Acme"
    for benchmark, tests in (("resnet", ("TEST01", "TEST04", "TEST05")), ("llama2-70b-99", TOKENS)):
        audits = top / "compliance/box" / benchmark / "Offline"
        assert {path.name for path in audits.iterdir()} == {*tests}
        assert (top / "measurements/box" / benchmark / "Offline/user.conf").is_file()
        assert (top / "code" / benchmark).is_dir()
    verified = audits / "TEST06/verify_accuracy.txt"
    assert "Sample length check pass: True" in verified.read_text("utf-8")


TOKENS = ("TEST06",)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not CHECKOUT, reason="MLPERF_INFERENCE names no checkout")
@pytest.mark.parametrize("round_name", ["v4.1", "v6.1"])
def test_mlcommons_own_checker_takes_the_tree(
    round_name: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed result of 600 seconds and its compliance tests: half an hour."""
    monkeypatch.chdir(tmp_path)
    results = measure(tmp_path / "measured", round_name, "official", 10)
    assert say(*INIT)[0] == 0
    filled(tmp_path / "form")
    arguments: Sequence[Any] = (results, "--form", "form", "--round", round_name, "-o", "tree")
    code, shown = say("submission", "export", *arguments)
    assert code == 0, shown

    done = checked(tmp_path, round_name)

    assert "SUMMARY: submission looks OK" in done.stdout + done.stderr, done.stdout + done.stderr
    assert done.returncode == 0


def checked(path: Path, round_name: str) -> subprocess.CompletedProcess[str]:
    """Let the checker of a round look at a tree: that of v4.1 is taken from its tag."""
    folder, command = Path(CHECKOUT) / "tools/submission", ["-m", "submission_checker.main"]
    if round_name == "v4.1":
        folder, command = path / "v4.1", ["submission_checker.py"]
        folder.mkdir()
        for name in ("submission_checker.py", "log_parser.py"):
            text = subprocess.run(
                ["git", "-C", CHECKOUT, "show", f"v4.1:tools/submission/{name}"],
                capture_output=True,
                check=True,
            ).stdout
            (folder / name).write_bytes(text)
    arguments = ["--input", str(path / "tree"), "--version", round_name]
    arguments += ["--csv", str(path / "summary.csv")]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
