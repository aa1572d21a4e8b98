"""`pytest-mlperf calibrate`: learn the noise of this machine from runs of unchanged code."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.case_runs import baseline_file, baselines_root, load_checked
from pytest_mlperf.cli.calibrate_learn import Learning, learn_and_show
from pytest_mlperf.cli.calibrate_runs import Repeated, Session
from pytest_mlperf.cli.history import RUNS_DIR, add_runs_dir
from pytest_mlperf.cli.output import add_parser, clean, complain, show, width
from pytest_mlperf.cli.suites import add_suites, find_suites, read_suites
from pytest_mlperf.core.baseline import find
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.reports.layout import duration, fold, plural
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.folders import ignored_in_git, new_id
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.stores import calibration
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.preflight import problems

RUNS = 8
LEASE_LIMIT_S = 21_600.0
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "calibrate",
        summary="learn this machine's noise from repeats of unchanged code",
        description=(
            "Runs every case that can run here N times, in turns, each run a fresh process,\n"
            "without changing anything in between, and learns what such runs vary by: inside\n"
            "a run, from run to run, from session to session. With --write this is stored\n"
            "beside the baselines, and verdicts on this machine expect that noise in place\n"
            "of the usual one. Every call is one session more; another day shows more than\n"
            "another hour. An interrupted call loses no finished run.\n"
            "\n"
            "Exit 1 when a case broke or the call was interrupted, 3 when no case can run."
        ),
        needs="suite files whose models and data are here, and a machine that is at rest",
        examples=[
            ("calibrate suites", "8 runs of every case; shows what would be learnt"),
            ("calibrate suites --write", "the same, and stores it; review and commit"),
            ("calibrate suites --runs 0 --write", "stores what earlier calls measured"),
        ],
    )
    add_suites(parser)
    parser.add_argument(
        "--runs",
        type=_runs,
        default=RUNS,
        metavar="N",
        help=f"runs of each case (default {RUNS}); 0: only learn from what is there",
    )
    parser.add_argument(
        "--session", type=_session, metavar="ID", help="go on with a session that was interrupted"
    )
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="TEXT",
        help="only cases whose name holds this; repeatable",
    )
    parser.add_argument("--write", action="store_true", help="write; without it nothing changes")
    parser.add_argument("--baselines", type=Path, help="folder (default: nearest to the suite)")
    add_runs_dir(parser)
    parser.set_defaults(run=run)


def _runs(text: str) -> int:
    runs = int(text)
    if runs != 0 and not 2 <= runs <= 1000:
        raise argparse.ArgumentTypeError("from 2 to 1000, or 0 to measure nothing")
    return runs


def _session(text: str) -> str:
    if not SESSION.fullmatch(text):
        raise argparse.ArgumentTypeError("letters, digits, dots and dashes")
    return text


def run(parsed: argparse.Namespace) -> int:
    """Measure, show, and with --write store.

    Raises:
        SuiteError: A suite is defective.
        MlperfError: There is nothing to learn from, or a file cannot be read or written.
        EnvironmentFault: No case can run here.
    """
    planned = _chosen(read_suites(find_suites(parsed.suites)), parsed.case)
    machine = detect(gpus=any(split(p.case.accelerator)[1] != "cpu" for p in planned))
    session = parsed.session or new_id()
    files: dict[tuple[Path, str], list[Planned]] = defaultdict(list)
    for one in planned:
        name = one.case.accelerator
        if machine.has(name):
            root = baselines_root(parsed.baselines, one.path, "closed")
            files[calibration.path_for(root, name), name].append(one)
    for file, name in files:
        calibration.load(file, name)  # a damaged one must not cost a measurement
    interrupted, broken = False, 0
    if parsed.runs:
        interrupted, broken = _measure(planned, machine, session, parsed)
    learnt, write = 0, parsed.write and not interrupted
    for (file, name), cases in files.items():
        task = Learning(
            file=file,
            accelerator=name,
            planned=cases,
            machine=machine,
            runs_dir=parsed.runs_dir,
            baselines=parsed.baselines,
        )
        learnt += learn_and_show(task, write=write)
    _next(parsed, session if interrupted else None, learnt)
    return 1 if interrupted or broken or not learnt else 0


def _chosen(planned: Sequence[Planned], texts: Sequence[str]) -> list[Planned]:
    """Return the cases whose id holds one of the texts; all where there is none."""
    for text in texts:
        if not any(text.lower() in one.case.id.lower() for one in planned):
            known = ", ".join(one.case.id for one in planned)
            raise MlperfError(f"no case fits {text!r}; these suites have: {known}")
    wanted = [text.lower() for text in texts]
    return [p for p in planned if not wanted or any(text in p.case.id.lower() for text in wanted)]


# --- measuring -------------------------------------------------------------------------------


def _measure(
    planned: Sequence[Planned], machine: Machine, session: str, parsed: argparse.Namespace
) -> tuple[bool, int]:
    """Make the runs; return whether that was interrupted, and how many cases broke."""
    ready, left_out = _ready(planned, machine)
    show(line for text in left_out for line in fold(f"left out: {text}", width(), rest="  "))
    if not ready:
        raise EnvironmentFault(
            f"no case can run here; here: {machine.seen}; pytest-mlperf doctor says what is missing"
        )
    folder = _folder(parsed.runs_dir, session)
    conditions = Conditions(
        folder=folder,
        session=session,
        commit=None,
        handicap=0.0,
        patience=Patience(),
        lease_limit_s=LEASE_LIMIT_S,
        machine=machine,
    )
    cases = [Repeated(p, rate=_rate(p, machine, parsed.baselines)) for p in ready]
    work = Session(conditions, folder, cases, say=_say, show=_progress)
    there = work.resume()
    seconds = parsed.runs * sum(p.seconds_per_run for p in ready)
    more = f", {plural(there, 'run')} of it there already" if there else ""
    show(
        [
            f"{plural(len(ready), 'case')} x {plural(parsed.runs, 'run')} in turns, session "
            f"{session}{more}",
            f"{duration(seconds)} of measuring, and starting up; nothing else should run here",
        ]
    )
    try:
        work.run(parsed.runs)
    except KeyboardInterrupt:
        _progress("")
        complain("interrupted; the runs that were finished are kept")
        return True, 0
    return False, sum(case.broken is not None for case in cases)


def _ready(planned: Sequence[Planned], machine: Machine) -> tuple[list[Planned], list[str]]:
    """Return the cases that can run here, and why the others cannot.

    Raises:
        SuiteError: An option is wrong.
    """
    absent = Counter(p.case.accelerator for p in planned if not machine.has(p.case.accelerator))
    left_out = [f"{plural(n, 'case')} on {name}, which is not here" for name, n in absent.items()]
    ready = []
    for one in planned:
        if one.case.accelerator in absent:
            continue
        found = [error for _, error in problems(one, scorer=False)]
        if wrong := [error for error in found if isinstance(error, SuiteError)]:
            raise wrong[0]
        if one.scenario.find:
            left_out.append(f"{one.case.id}: a search makes no runs at one rate")
        elif found:
            left_out.append(f"{one.case.id}: {'; also '.join(map(str, found))}")
        else:
            ready.append(one)
    return ready, left_out


def _folder(runs_dir: Path, session: str) -> Path:
    """Return the folder of a session, kept out of git.

    Raises:
        MlperfError: It cannot be made.
    """
    folder = runs_dir / "calibration" / session
    try:
        ignored_in_git(runs_dir)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MlperfError(f"{folder} cannot be made: {error.strerror}") from None
    return folder


def _rate(planned: Planned, machine: Machine, baselines: Path | None) -> float | None:
    """Return the rate of the suite, else that of the baseline, as the judge takes it."""
    accelerator = planned.case.accelerator
    if rate := planned.scenario.rate_on(accelerator):
        return rate
    root = baselines_root(baselines, planned.path, planned.suite.division)
    loaded = load_checked(baseline_file(root, planned.case, planned.suite.profile), planned.case)
    record = find(loaded, machine.identity(accelerator)) if loaded else None
    return record.target_qps if record else None


def _say(line: str) -> None:
    _progress("")
    print(clean(line), flush=True)


def _progress(line: str) -> None:
    """Show a line that the next one replaces, where there is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(line)[: width() - 1]}", end="", file=sys.stderr, flush=True)


def _next(parsed: argparse.Namespace, interrupted: str | None, learnt: int) -> None:
    """Say what to do next.

    Args:
        parsed: The command's arguments.
        interrupted: The session to go on with, or None.
        learnt: Accelerators that something was learnt of.
    """
    words = ["pytest-mlperf", "calibrate", *map(str, parsed.suites)]
    words += [word for text in parsed.case for word in ("--case", text)]
    words += ["--baselines", str(parsed.baselines)] if parsed.baselines else []
    words += ["--runs-dir", str(parsed.runs_dir)] if parsed.runs_dir != RUNS_DIR else []
    again = shlex.join(words)
    if interrupted:
        runs = "" if parsed.runs == RUNS else f" --runs {parsed.runs}"
        show(["nothing was written; go on: " + again + f"{runs} --session {interrupted}"])
    elif learnt and parsed.write:
        show(["review and commit it; on another day the same command adds a session"])
    elif learnt:
        show([f"dry run; to write it: {again} --runs 0 --write"])
