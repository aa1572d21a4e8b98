"""`pytest-mlperf calibrate`: estimate this machine's noise from runs of unchanged code."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import hashlib
import json
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from pytest_mlperf.bench.case import baseline_file, baselines_root, load_checked
from pytest_mlperf.bench.runner import INVALID_TRIES, CaseRunner, SearchState, Unjudgeable
from pytest_mlperf.cli.arguments import REPEATABLE, add, again
from pytest_mlperf.cli.machine import server_machine
from pytest_mlperf.cli.output import integer_type, progress, show, width
from pytest_mlperf.cli.stored_results import folder_in
from pytest_mlperf.cli.suites import find_suites, read_suites
from pytest_mlperf.core.baseline import Property, Record, find_record
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Run, Subject, repeat_note
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.noise import Learnt, Noise, Series, learn, spread, uncalibrated
from pytest_mlperf.core.noise.calibration import (
    USUAL_BASELINE_RUNS,
    Calibrated,
    CalibratedCase,
    Calibration,
    CalibrationRun,
    NoiseSettings,
    best_length,
    drift,
    merged,
    runs_to_detect,
    settings_of,
)
from pytest_mlperf.core.numbers import MAX_RUNS, change, duration, limit, percent, plural
from pytest_mlperf.core.rulings.ruling import rule_values
from pytest_mlperf.core.rulings.sample import countable
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import clean
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.judge.rule_r import Value, minimum_detectable_change
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal.layout import fold, relative, table
from pytest_mlperf.run.accuracy import ScoringSchedule
from pytest_mlperf.run.conditions import (
    LOST_FOLDER,
    WARM_FOLDER,
    Conditions,
    LostGpus,
    WarmUps,
    on_server,
)
from pytest_mlperf.run.measure import ProcessResult
from pytest_mlperf.run.project import new_id
from pytest_mlperf.stores import calibration
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.resolve import Problems, resolve

RUNS = 8
AGAIN = ("suites", "--case", "--baselines", "--runs-dir")
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

HELP = """\
Measures every case of this machine N times, interleaved, each run a new process
of unchanged code, and estimates the noise: within a run, from run to run, from
session to session. --write stores the estimates next to the baselines; verdicts
on this machine then use them instead of the defaults. Each call adds a session;
calls on different days tell more. An interrupted call keeps its finished runs.

Exit 1 if a case failed, 3 if no case can run.

needs: suites with their models and data, and an idle machine

examples:
  $ pytest-mlperf calibrate suites
      8 runs of every case; shows the estimates
  $ pytest-mlperf calibrate suites --write
      the same, and stores the estimates; review and commit them
  $ pytest-mlperf calibrate suites --runs 0 --write
      stores estimates from earlier calls
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add(parser, "suites")
    parser.add_argument(
        "--runs",
        type=integer_type(2, MAX_RUNS, or_zero=True),
        default=RUNS,
        metavar="N",
        help=f"runs of each case (default {RUNS}); 0: use stored runs only",
    )
    parser.add_argument(
        "--session", type=_session, metavar="ID", help="continue an interrupted session"
    )
    text = "only cases with this text in their id; repeatable"
    add(parser, "--case", **REPEATABLE, metavar="TEXT", help=text)
    add(parser, "--write", "--baselines", "--runs-dir")


def _session(text: str) -> str:
    if not SESSION.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a session id; use the id that the interrupted call printed"
        )
    return text


def run(parsed: argparse.Namespace) -> int:
    """Measure the cases and show the noise estimates; store them with --write."""
    planned = _chosen(read_suites(find_suites(parsed.suites)), parsed.case)
    machine = detect(gpus=any(split(p.case.accelerator)[1] != "cpu" for p in planned))
    session = parsed.session or new_id()
    # GPUs at another power limit are another machine, as is the machine of a server.
    machines = [dataclasses.replace(server_machine(p, machine), limit_w=p.limit_w) for p in planned]
    groups: dict[tuple[Path, str, str], list[Planned]] = defaultdict(list)
    for case, its_machine in zip(planned, machines, strict=True):
        name = case.case.accelerator
        if its_machine.has(name):
            root = baselines_root(parsed.baselines, case.path, "closed")
            identity = json.dumps(its_machine.identity(name))
            groups[calibration.path_for(root, name), name, identity].append(case)
    for file, name, _ in groups:
        calibration.load(file, name)  # a damaged one must not cost a measurement
    broken = _measure(planned, machine, machines, session, parsed) if parsed.runs else 0
    learnt = 0
    for (file, name, text), cases in groups.items():
        identity = parse_json(text)
        samples = baseline_runs(cases, identity, parsed.baselines)
        learnt += learn_and_show(file, name, identity, parsed.runs_dir, samples, write=parsed.write)
    if learnt and parsed.write:
        show(["review and commit the file; repeat on another day to add a session"])
    elif learnt:
        show([f"dry run; to write: {again(parsed, *AGAIN)} --runs 0 --write"])
    return int(bool(broken) or not learnt)


def _chosen(planned: Sequence[Planned], texts: Sequence[str]) -> list[Planned]:
    parts = [text.lower() for text in texts]
    for text, part in zip(texts, parts, strict=True):
        if not any(part in one.case.id.lower() for one in planned):
            ids = ", ".join(one.case.id for one in planned)
            raise MlperfError(f"no case matches {text!r}; the suites have: {ids}")
    return [p for p in planned if not parts or any(part in p.case.id.lower() for part in parts)]


def _measure(
    planned: Sequence[Planned],
    client: Machine,
    machines: Sequence[Machine],
    session: str,
    parsed: argparse.Namespace,
) -> int:
    ready, left_out = _ready(planned, machines)
    show(line for text in left_out for line in fold(f"left out: {text}", width(), rest="  "))
    if not ready:
        raise EnvironmentFault(
            f"no case can run on this machine ({client.seen}); find the reason: pytest-mlperf "
            "doctor"
        )
    folder = folder_in(parsed.runs_dir, "calibration", session)
    conditions = Conditions(
        folder=folder,
        session=session,
        machine=client,
        # A session may go on hours later: what worked before that does not count.
        warmups=WarmUps("auto", folder / f"{WARM_FOLDER}-{new_id()}"),
        lost=LostGpus(folder / f"{LOST_FOLDER}-{new_id()}"),
    )
    cases = [
        Repeated(p, job, on_server(p, conditions), _rate(p, machine, parsed.baselines))
        for p, job, machine in ready
    ]
    there = sum(len(case.kept) for case in cases)
    seconds = parsed.runs * sum(job.seconds_per_run for _, job, _ in ready)
    more = f", {plural(there, 'run')} done already" if there else ""
    show(
        [
            f"{plural(len(ready), 'case')} x {plural(parsed.runs, 'run')} interleaved, session "
            f"{session}{more}",
            f"about {duration(seconds)} plus start-up; keep the machine idle",
        ]
    )
    try:
        _in_turns(cases, parsed.runs)
    except KeyboardInterrupt:
        runs = "" if parsed.runs == RUNS else f" --runs {parsed.runs}"
        raise KeyboardInterrupt(
            "the finished runs are kept; continue: "
            f"{again(parsed, *AGAIN)}{runs} --session {session}"
        ) from None
    return sum(case.broken is not None for case in cases)


def _in_turns(cases: Sequence[Repeated], runs: int) -> None:
    turns = [(number, case) for number in range(1, runs + 1) for case in cases]
    for done, (number, case) in enumerate(turns, start=1):
        if case.broken or number in {run.number for run in case.kept}:
            continue
        count = len(case.invalid_runs)
        try:
            run = case.add_run()
        except (MlperfError, Unjudgeable) as error:
            tries = f"INVALID {INVALID_TRIES} times: " if isinstance(error, Unjudgeable) else ""
            reason = sentence(error.note) if isinstance(error, Unjudgeable) else str(error)
            case.broken = f"{tries}{reason}"
            text = f"failed: {case.broken}"
        else:
            case.save_run(run, number)
            text = f"{run.duration_s:.1f} s, start-up {case.start_s:.1f} s"
            if again := repeat_note(case.invalid_runs[count:]):
                text += f"; {sentence(again)}"
        position = f"{done:>{len(str(len(turns)))}} of {len(turns)}"
        progress("")
        for line in fold(clean(f"{position}  {case.planned.case.id}  {text}"), width(), rest="  "):
            print(line, flush=True)


class Repeated(CaseRunner):
    """Run one case repeatedly for a calibration; write each finished run to a file at once.

    Attributes:
        broken: Error that ended the measurement, or None.
        start_s: Overhead of the last process besides the run (seconds).
    """

    def __init__(
        self, planned: Planned, job: Job, conditions: Conditions, rate: float | None
    ) -> None:
        super().__init__(planned, conditions, progress, rate=rate, search=False, job=job)
        self.kept: tuple[CalibrationRun, ...] = ()
        self.broken: str | None = None
        self.last: ProcessResult | None = None
        self.start_s = 0.0
        self._accelerator = planned.case.accelerator
        self._file = calibration.file_in(conditions.folder, self._accelerator)
        stored = calibration.load(self._file, self._accelerator)
        identity = self.conditions.machine.identity(self._accelerator)
        machine = stored.of(identity) if stored else None
        for case in machine.cases if machine else ():
            if (case.case, case.profile) == (planned.case.id, planned.suite.profile):
                self.kept, self.rate = case.runs, case.target_qps

    def process(
        self, *, performance: bool, ask: ScoringSchedule | None, at: SearchState | None = None
    ) -> ProcessResult:
        """Run a worker; store its untimed seconds in `start_s`; MlperfError on a missed limit."""
        began = time.monotonic()
        process = super().process(performance=performance, ask=ask, at=at)
        run = process.run
        assert run is not None
        seconds = time.monotonic() - began - process.waited_s - run.duration_s
        self.start_s, self.last = max(0.0, seconds), process
        if run.limit_missed:
            raise MlperfError(
                f"the latency limit is exceeded at {run.target_qps:.4g}/s; set a lower target_qps "
                "in the suite"
            )
        return process

    def save_run(self, run: Run, number: int) -> None:
        """Add a run; write it to the calibration file, so that an interruption loses none."""
        planned, process = self.planned, self.last
        assert process is not None
        limits = {**planned.limits, **planned.efficiency_limits}
        gated = {name for name in countable([run], limits) if name in run.metrics}
        fresh = CalibrationRun(
            number=number,
            session=self.conditions.session,
            started=run.started,
            metrics={name: run.metrics[name] for name in sorted(gated)},
            within_se={name: se for name, se in run.within_se.items() if name in gated},
            duration_s=run.duration_s,
            start_s=round(self.start_s, 3),
        )
        self.kept = (*self.kept, fresh)
        case = CalibratedCase(
            case=planned.case.id,
            profile=planned.suite.profile,
            digest=digest(self.of_suite, process.subject),
            target_qps=process.target_qps,
            limits=limits,
            runs=self.kept,
        )
        identity = dict(process.subject.identity)

        def put(old: Calibration) -> Calibration:
            machine = old.of(identity) or Calibrated(identity=identity, settings=None, cases=())
            cases, _ = merged(machine.cases, [case])
            return old.having(dataclasses.replace(machine, cases=cases))

        calibration.update(self._file, self._accelerator, put)


def digest(planned: Planned, subject: Subject) -> str:
    """Return a digest of engine, data and run length; only runs with equal digests are pooled."""
    content = {**subject.fingerprint, "seconds": f"{planned.seconds_per_run:g}"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _ready(
    planned: Sequence[Planned], machines: Sequence[Machine]
) -> tuple[list[tuple[Planned, Job, Machine]], list[str]]:
    both = list(zip(planned, machines, strict=True))
    absent = Counter(
        p.case.accelerator for p, machine in both if not machine.has(p.case.accelerator)
    )
    left_out = [
        f"{plural(n, 'case')} on {name}, which is not on this machine" for name, n in absent.items()
    ]
    ready = []
    for case, machine in both:
        if not machine.has(case.case.accelerator):
            continue
        job = resolve(case, scorer=False)
        errors = [each.error for each in job.problems] if isinstance(job, Problems) else []
        if wrong := [error for error in errors if isinstance(error, SuiteError)]:
            raise wrong[0]
        if case.scenario.find:
            left_out.append(
                f"{case.case.id}: find determines its load by a search, so its noise cannot be "
                "estimated"
            )
        elif isinstance(job, Problems):
            left_out.append(f"{case.case.id}: {'; also '.join(map(str, errors))}")
        else:
            ready.append((case, job, machine))
    return ready, left_out


def _rate(planned: Planned, machine: Machine, baselines: Path | None) -> float | None:
    accelerator = planned.case.accelerator
    if rate := planned.scenario.rate_on(accelerator):
        return rate
    record = recorded(planned, machine.identity(accelerator), baselines)
    return record.target_qps if record else None


BaselineRuns = Mapping[tuple[str, str], Sequence[Value]]
"""Values of the recorded baselines' runs, by case id and metric."""

NEAR_BEST_FACTOR = 2.0
"""A run length within this factor of the optimum costs at most an eighth more time."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Format calibrate's report on the noise of one accelerator.

    Attributes:
        default: Noise assumed without a calibration.
        baselines: Baseline runs; a case without a baseline uses its calibration runs instead.
    """

    accelerator: str
    machine: Calibrated
    learnt: Learnt
    settings: NoiseSettings
    default: Noise
    baselines: BaselineRuns
    width: int

    def lines(self) -> Iterator[str]:
        """Yield the lines of the noise report: a table of metrics, then the settings."""
        named = ", ".join(f"{key} {value}" for key, value in self.machine.identity.items() if value)
        yield ""
        yield from fold(f"noise of {self.accelerator} ({named})", self.width, rest="  ")
        rows = [self._row(case, series) for case in self.machine.cases for series in case.series]
        lines = iter(table(rows, self.width, left=["metric"], spare=["runs"], indent="  "))
        yield next(lines)
        for case in self.machine.cases:
            yield case.case + (f" ({case.profile})" if case.profile != "quick" else "")
            yield from islice(lines, len(case.series))
            yield from fold(self._length(case), self.width, first="  ", rest="  ")
        yield ""
        yield from self._settings()
        for note in self._notes():
            yield from fold(f"note: {note}", self.width, rest="  ")

    def _row(self, case: CalibratedCase, series: Series) -> dict[str, str]:
        varies = spread(series.runs)
        return {
            "metric": METRICS[series.metric].title,
            "runs": str(len(series.runs)),
            "inside": _sd(varies.within) if varies and varies.within else "-",
            "run to run": _sd(varies.run) if varies else "-",
            "session": _sd(varies.session) if varies and varies.session is not None else "-",
            "usual": percent(self._proves(case, series, self.default)),
            "proves": percent(self._proves(case, series, self.learnt.noise)),
            "limit": limit(series.metric, case.limits[series.metric]),
        }

    def _proves(self, case: CalibratedCase, series: Series, noise: Noise) -> float:
        baseline = self.baselines.get((case.case, series.metric), series.runs)
        return minimum_detectable_change(baseline, rule=noise.rule(USUAL_BASELINE_RUNS))

    def _length(self, case: CalibratedCase) -> str:
        length = median(run.duration_s for run in case.runs)
        start = median(run.start_s for run in case.runs)
        text = f"run length {length:.1f} s, start-up {start:.1f} s"
        noise = self.learnt.noise
        lengths = [
            best_length(series.runs, noise, length_s=length, start_s=start)
            for series in case.series
        ]
        advised = [each for each in lengths if each is not None]
        if not advised:
            return f"{text}; best length unknown: the noise within a run was not measured"
        best = max(advised)
        right = (
            " (the current length is as good)"
            if best / NEAR_BEST_FACTOR <= length <= best * NEAR_BEST_FACTOR
            else ""
        )
        return f"{text}; best length {duration(best)}{right}"

    def _settings(self) -> Iterator[str]:
        usual, here = self.default, self.learnt.noise
        head = f"estimated for {self.accelerator}"
        rows = (
            ("noise between runs, s0", percent(usual.prior_sd), percent(here.prior_sd)),
            ("degrees of freedom, nu0", f"{usual.prior_df:.2g}", f"{here.prior_df:.2g}"),
            (
                "share between sessions, phi",
                f"{usual.session_share:.2g}",
                f"{here.session_share:.2g}",
            ),
            ("maximum runs, K", str(USUAL_BASELINE_RUNS), str(self.settings.max_runs)),
        )
        cells = [{head: what, "usual": before, "here": now} for what, before, now in rows]
        yield from table(cells, self.width, left=[head])
        learnt = self.learnt
        df, sd = (f"{100 * weight:.0f} %" for weight in learnt.weights)
        text = (
            f"estimated from {plural(learnt.cases, 'case')}, {plural(learnt.runs, 'run')} on "
            f"{plural(learnt.sessions, 'day')}; these runs "
            f"determine {sd} of s0 and {df} of nu0, the defaults the rest; {self._sure()}"
        )
        yield from fold(text, self.width)

    def _sure(self) -> str:
        sd, share = self.learnt.sd, self.learnt.share
        if sd is None or share is None:
            return "phi is the default, so s0 has no confidence interval"
        return (
            f"90 % confidence: s0 {percent(sd[0])} to {percent(sd[1])}, phi {share[0]:.2g} to "
            f"{share[1]:.2g}"
        )

    def _notes(self) -> Iterator[str]:
        if self.learnt.sessions == 1:
            yield "all runs are from one day; calibrate again on another day"
        for case in self.machine.cases:
            measured = {series.metric for series in case.series}
            if lacking := [METRICS[name].title for name in case.limits if name not in measured]:
                yield (
                    f"{case.case}: {', '.join(lacking)} left out, because some runs did not "
                    "measure it or had too few queries"
                )
        runs = [run for case in self.machine.cases for run in case.runs]
        newest = max(runs, key=lambda run: run.started).session
        groups = {name: day for case in self.machine.cases for name, day in case.groups.items()}
        drifted = drift(self.machine.series, groups[newest])
        if drifted and drifted.proven:
            way = "slower" if drifted.change < 0 else "faster"
            yield (
                f"all cases became {way} during session {newest} ({change(drifted.change)} from "
                "first to last round); warm up the machine, close other processes, and repeat"
            )
        limits = [
            (case.limits[series.metric], self._proves(case, series, self.learnt.noise))
            for case in self.machine.cases
            for series in case.series
        ]
        unable = sum(proves > bound for bound, proves in limits)
        if unable:
            yield (
                "at this noise, a drop as large as the limit cannot be detected for "
                f"{unable} of {plural(len(limits), 'limit')}; "
                "reduce the noise, record more sessions (--mlperf-update=append) or widen the limit"
            )
        if self.settings.max_runs != USUAL_BASELINE_RUNS:
            most = self.settings.max_runs
            yield f"K is not stored; to use it, pass --mlperf-max-runs {most} to pytest"


def _sd(variance: float) -> str:
    return f"{math.sqrt(variance) * 100:.2g} %"


def learn_and_show(
    file: Path,
    accelerator: str,
    identity: Mapping[str, Property],
    runs_dir: Path,
    baselines: BaselineRuns,
    *,
    write: bool,
) -> bool:
    """Estimate, show and, if `write`, store the noise; return False if no estimate is possible."""
    stored = calibration.load(file, accelerator)
    old = stored.of(identity) if stored else None
    cases = old.cases if old else ()
    for path in sorted((runs_dir / "calibration").glob(f"*/{accelerator}.json")):  # oldest first
        kept = calibration.load(path, accelerator)
        newer = kept.of(identity) if kept else None
        cases, notes = merged(cases, newer.cases if newer else ())
        show(line for note in notes for line in fold(note, width(), rest="  "))
    machine = Calibrated(identity=dict(identity), settings=None, cases=cases)
    default = uncalibrated(accelerator)
    try:
        learnt = learn(machine.series, default)
    except ValueError as error:
        show([f"{accelerator}: no estimate: {error}"])
        return False
    gated = [
        (baselines.get((case.case, series.metric), series.runs), case.limits[series.metric])
        for case in machine.cases
        for series in case.series
    ]
    today = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    page = Page(
        accelerator=accelerator,
        machine=machine,
        learnt=learnt,
        settings=settings_of(learnt, date=today, max_runs=runs_to_detect(gated, learnt.noise)),
        default=default,
        baselines=baselines,
        width=width(),
    )
    show(page.lines())
    whole = dataclasses.replace(machine, settings=page.settings)
    if write:
        calibration.update(file, accelerator, lambda old: old.having(whole))
    show([f"{'wrote' if write else 'would write'} {relative(file)}"])
    return True


def recorded(
    planned: Planned, identity: Mapping[str, Property], folder: Path | None
) -> Record | None:
    """Return the baseline record of a case on this hardware; None if it has none."""
    root = baselines_root(folder, planned.path, planned.suite.division)
    file = baseline_file(root, planned.case, planned.suite.profile)
    return find_record(load_checked(file, planned.case), identity)


def baseline_runs(
    planned: Sequence[Planned], identity: Mapping[str, Property], folder: Path | None
) -> BaselineRuns:
    """Return the baseline runs of this machine by (case id, metric)."""
    runs: dict[tuple[str, str], Sequence[Value]] = {}
    for case in planned:
        if record := recorded(case, identity, folder):
            for metric in record.runs[0].metrics:
                runs[case.case.id, metric] = rule_values(record.runs, metric)
    return runs
