"""`pytest-mlperf update` accepts an ordinary session: it makes the runs that are missing."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf.cli.update import make_proposal, repeated
from pytest_mlperf.cli.update._proposals import Terms, ToMeasure
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.run.project import is_tracked
from pytest_mlperf.stores import accuracy_baselines, baselines
from pytest_mlperf.stores.results import digest_of, sealed
from tests.cli.lab import CASE, PERFORMANCE, Lab, performance
from tests.cli.text import Say, differing, one_line
from tests.conftest import LEAN

SPEED = Path("baselines/cpu/quick/first/Offline.Acme.fp32.json")
SCORES = Path("baselines/accuracy/first/Acme.fp32.json")

WRITE = ("--write", "--reason", "acme 2.0: security", "--runs", "5")
ACCEPT = ("--accept-regression", CASE)


@pytest.fixture
def update(
    own_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Say:
    """Run the command, and the processes that it starts, in a project of its own."""
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{LEAN} -p no:cacheprovider -omlperf_control=off")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    assert own_lab.path == Path.cwd()
    return Say(capfd)


def test_options_of_runs_are_repeated() -> None:
    official = ("--mlperf-profile=official",)
    rows: dict[tuple[str, ...], tuple[str, ...]] = {
        (): (),
        official: official,
        ("--mlperf-profile", "official"): official,
        ("--mlperf-runs-dir=x", "--mlperf-handicap", "50%"): (),
    }
    assert {arguments: repeated(arguments) for arguments in rows} == rows


def content() -> dict[str, bytes]:
    """Return every file of the baselines."""
    return {str(p): p.read_bytes() for p in Path("baselines").rglob("*") if p.is_file()}


def test_one_command_accepts_a_red_session(own_lab: Lab, update: Say) -> None:
    output = update.ends(0, "update", own_lab.upgraded, *ACCEPT, *WRITE)
    assert output.endswith("wrote 2, refused 0; review and commit: git add baselines\n")
    assert [text for text in ("update-", "commit it", "record again") if text in output] == []
    loaded, scores = baselines.load(SPEED), accuracy_baselines.load(SCORES)
    assert loaded is not None
    assert scores is not None
    (record,) = loaded.records
    assert record.fingerprint["engine.acme"] == scores[0].fingerprint["engine.acme"] == "2.0"
    assert len(record.runs) >= 5
    assert len({run.session for run in record.runs}) == 1
    assert record.runs[0].session not in own_lab.upgraded.parent.name
    assert [entry.reason for entry in record.history] == ["first baseline", "acme 2.0: security"]
    assert [entry.action for entry in scores[0].history] == ["record", "replace"]
    assert list(Path(".mlperf").glob("update-*")) == []
    assert [p.suffix for p in Path("baselines").rglob("*") if p.suffix == ".tmp"] == []


def test_another_machine_or_a_dry_run_measures_nothing(own_lab: Lab, update: Say) -> None:
    content_at_start = content()
    output = update.ends(0, "update", own_lab.upgraded, *ACCEPT)
    runs = len(performance(own_lab.upgraded).verdict.runs)
    assert f"{CASE}\n  to measure: {runs} runs; a baseline needs 5\n" in output
    assert f"{CASE} accuracy\n  to measure: scores need the whole data set\n" in output
    assert "dry run: 0 to write, 2 to measure first (8 runs per case, about " in one_line(output)
    assert " s and up to 15 s waiting for an idle machine), " in one_line(output)
    assert content() == content_at_start
    data = json.loads(own_lab.upgraded.read_text("utf-8"))
    for case in data["cases"]:
        case["verdict"]["subject"]["identity"]["cores"] = 192
    own_lab.upgraded.write_text(json.dumps(sealed(data)), "utf-8")
    output = update.ends(1, "update", own_lab.upgraded, *ACCEPT, "--case", CASE)
    assert "; measured on another machine (cores 192 there," in one_line(output)
    assert f'run there: pytest "{PERFORMANCE}" --mlperf-update=replace' in one_line(output)


@pytest.mark.process
def test_a_suite_that_nobody_here_measured_or_tracks_is_not_run(own_lab: Lab, update: Say) -> None:
    """A results file from elsewhere can name any file below the working folder."""
    evil = Path("unpacked/test_evil.py")
    evil.parent.mkdir()
    evil.write_text("open('RAN', 'w')\ndef test_performance(): pass\n", "utf-8")
    data = json.loads(own_lab.upgraded.read_text("utf-8"))
    for case in data["cases"]:
        case["suite"], case["test"] = str(evil), f"{evil}::test_performance"
        case["verdict"]["baseline"]["file"] = None
        case["rests_on"] = {str(evil): digest_of(evil)}
    foreign = evil.with_name("results.json")
    foreign.write_text(json.dumps(sealed(data)), "utf-8")
    words = ("update", foreign, *ACCEPT, *WRITE, "--baselines", "baselines")
    output = one_line(update.ends(1, *words))
    assert f"{evil} is not run, because git does not track it and no session" in output
    assert output.count("or use --no-runs") == 2
    assert not Path("RAN").exists()

    subprocess.run(["git", "init", "-q"], check=True)
    assert not is_tracked(evil)
    subprocess.run(["git", "add", evil], check=True)
    assert is_tracked(evil)
    assert not is_tracked(Path("unpacked/*.py"))


def test_what_stays_and_what_must_be_accepted_first_is_not_measured(
    own_lab: Lab, update: Say
) -> None:
    """What is ok with its baseline's build stays unless its case is named."""
    output = update.ends(0, "update", own_lab.unchanged)
    assert output.count("  kept: ok, same build as the baseline") == 2
    assert output.endswith("nothing to write, 0 refused\n")
    chosen = ("dry run: 0 to write, 2 to measure first",)
    worse = ("refused: worse: PERF DROP samples/s −", f"to accept: --accept-regression {CASE}")
    rows = [
        (("update", own_lab.unchanged, "--case", CASE), 0, chosen),
        (("update", own_lab.upgraded, "--case", CASE), 1, worse),
    ]
    assert differing(update, rows) == []


@pytest.mark.usefixtures("update")
def test_runs_of_another_build_are_not_taken_for_the_session_s(own_lab: Lab) -> None:
    session_case, made = performance(own_lab.upgraded), performance(own_lab.unchanged)
    to_measure = ToMeasure(
        result=session_case, root=Path("baselines"), reason="2 runs", limits=session_case.limits
    )
    terms = Terms(
        baselines=None,
        reason="acme 2.0",
        regressions=frozenset({CASE}),
        chosen=frozenset(),
        measure=True,
    )
    with pytest.raises(BaselineError, match=r"engine\.acme 2\.0 → 1\.0\); run pytest again, then"):
        make_proposal(to_measure, made, Path("baselines"), terms)
    with pytest.raises(BaselineError, match="pytest did not measure it; see its output above"):
        make_proposal(to_measure, None, Path("baselines"), terms)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts this process, as at a terminal, whatever started the tests."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_writes_nothing(own_lab: Lab, update: Say) -> None:
    content_at_start = content()
    Path("conftest.py").write_text(
        "import os, signal\n"
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'teardown' and 'accuracy' in report.nodeid:\n"
        "        os.kill(os.getppid(), signal.SIGINT)\n"
        "        raise KeyboardInterrupt\n",
        "utf-8",
    )
    output = update.ends(130, "update", own_lab.upgraded, *ACCEPT, *WRITE)
    assert "pytest-mlperf: interrupted; nothing was written" in output
    assert content() == content_at_start
    assert list(Path(".mlperf").glob("update-*")) == []


def test_a_suite_that_is_gone_refuses_and_writes_nothing(own_lab: Lab, update: Say) -> None:
    content_at_start = content()
    suite = Path("suites/first.mlperf.toml")
    suite.write_text(suite.read_text("utf-8").replace('"first"', '"second"'), "utf-8")
    output = update.ends(2, "update", own_lab.upgraded, *ACCEPT, *WRITE)
    assert "pytest ended with exit code 4 (output above); nothing was written" in one_line(output)
    assert content() == content_at_start
