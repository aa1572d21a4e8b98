"""A/A noise: what runs in fresh processes vary by, inside one session and from session to session.

A session is a process group of its own after a rest, a run a fresh process in it: what the
judgement takes them for, as far as some minutes can show it. `python -m benchmarks.gpu.sessions` is
one session, or one run where it is asked for none.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import TypedDict

from benchmarks.gpu.figures import sd_interval
from benchmarks.gpu.lifeline import die_with_parent
from benchmarks.gpu.load import Decoder, Launcher, Products
from benchmarks.gpu.setting import Answer, Part, Setting, Table, percent, show
from pytest_mlperf.core.noise import spread
from pytest_mlperf.judge.rule_r import Value

SESSIONS = 4
FEWEST_RUNS = 2
"""In a session: more sessions tell more than more runs."""

REST_S = 8.0
"""Before each session: clocks and temperature fall."""

WINDOW_S = 2.5
"""Of each metric in each run."""

SIMULATED_S = 0.15
"""Of both where all is simulated."""

SLACK = 1.15
"""A run may take so many times as long as the first."""

RATES = ("decode, tokens/s", "products, FLOP/s", "launches, kernels/s")
"""Bound by memory, by the cores, and by the host."""


class Asked(TypedDict):
    """What a session, or a run, is told on stdin; one that is asked for 0 runs is a run itself."""

    device: str
    window_s: float
    runs: int
    parent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run.

    Attributes:
        session: Of which session, from 1.
        position: In it, from 1.
        rates: Of each load, by RATES.
    """

    session: int
    position: int
    rates: dict[str, float]


def part(setting: Setting) -> Part:
    """As many runs in each session as the time allows."""
    end_s = time.monotonic() + setting.seconds
    rest_s, window_s = (SIMULATED_S,) * 2 if setting.simulated else (REST_S, WINDOW_S)
    begin_s = time.monotonic()
    # Not counted: the first process of all reads its libraries from the disk.
    list(_session(setting, 1, window_s))
    run_s, runs = SLACK * (time.monotonic() - begin_s), list[Run]()
    planned = (end_s - time.monotonic()) / SESSIONS - rest_s
    for session in range(1, SESSIONS + 1):
        left_s = end_s - time.monotonic() - rest_s
        count = min(max(FEWEST_RUNS, int(planned / run_s)), int(left_s / run_s))
        if count < FEWEST_RUNS:
            break
        time.sleep(rest_s)
        for position, rates in enumerate(_session(setting, count, window_s), start=1):
            runs.append(Run(session=session, position=position, rates=rates))
            yield _answer(runs)
            if end_s - time.monotonic() < run_s:
                return
    if not runs:
        short = f"a run takes {run_s:.0f} s: {setting.seconds:.0f} s are too few for a session"
        yield Answer(failures=[short])


def _session(setting: Setting, runs: int, window_s: float) -> Iterator[dict[str, float]]:
    """Yield the rates of so many fresh processes of one new process group.

    Raises:
        RuntimeError: A process failed; its last line says why.
    """
    asked = Asked(device=setting.device, window_s=window_s, runs=runs, parent=os.getpid())
    process = _start(asked, new_group=True)
    assert process.stdout is not None
    try:
        last = ""
        for last in process.stdout:
            if last.startswith("{"):
                yield json.loads(last)
        if process.wait():
            raise RuntimeError(f"a run broke: {last.strip() or process.returncode}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _start(asked: Asked, *, new_group: bool) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.sessions"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if new_group else None,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=new_group,
    )
    assert process.stdin is not None
    with process.stdin as stream:
        stream.write(json.dumps(asked))
    return process


def _rates(device: str, window_s: float) -> dict[str, float]:
    """Load all three, then measure each once, warm."""
    decoder, products, launcher = Decoder.on(device), Products.on(device), Launcher(device)
    decoder.run(window_s / 5)
    marks = decoder.run(window_s)
    products.rate(window_s / 5)
    flop = products.rate(window_s)
    launcher.rate(window_s / 5)
    tokens = marks[-1].value / (marks[-1].time_s - marks[0].time_s)
    return dict(zip(RATES, (tokens, flop, launcher.rate(window_s)), strict=True))


def components(runs: Sequence[Run], rate: str) -> dict[str, float | None]:
    """Return what one rate varied by, as shares of its mean; None: too few runs to say.

    "run": standard deviation inside a session; "session": between sessions beside that, 0 where
    the runs explain it all; "share": of the variance, what sessions have; "first": by how much the
    first runs of sessions were above the later ones; "first_se": its standard error; "neighbours":
    correlation of a run with the next one of its session.

    Source: one-way random effects, see `pytest_mlperf.core.noise.spread`.
    """
    values = [Value(value=run.rates[rate], within_se=0.0, session=str(run.session)) for run in runs]
    found: dict[str, float | None] = dict.fromkeys(
        ("run", "session", "share", "first", "first_se", "neighbours")
    )
    if (both := spread(values)) is None:
        return found
    found["run"] = math.sqrt(both.run)
    if both.session is not None:
        found["session"] = math.sqrt(both.session)
        whole = both.run + both.session
        found["share"] = both.session / whole if whole else None
    groups = [
        [math.log(run.rates[rate]) for run in runs if run.session == session]
        for session in sorted({run.session for run in runs})
    ]
    leads = [group[0] - fmean(group[1:]) for group in groups if len(group) > 1]
    if len(leads) > 1:
        found["first"], found["first_se"] = fmean(leads), stdev(leads) / math.sqrt(len(leads))
    apart = [[x - fmean(group) for x in group] for group in groups]
    pairs = [pair for group in apart for pair in pairwise(group)]
    if whole := math.fsum(x * x for group in apart for x in group):
        # The mean product over the mean square; a session's own mean draws it below 0.
        mean_square = whole / sum(len(group) for group in apart)
        found["neighbours"] = fmean(a * b for a, b in pairs) / mean_square if pairs else None
    return found


def _answer(runs: Sequence[Run]) -> Answer:
    by_run = Table(
        title="Each run, percent above the mean of its rate",
        columns=("session", "run", *RATES),
    )
    means = {rate: fmean(run.rates[rate] for run in runs) for rate in RATES} if runs else {}
    by_run.rows = [
        (str(r.session), str(r.position), *(percent(r.rates[n] / means[n] - 1) for n in RATES))
        for r in runs
    ]
    sessions = len({run.session for run in runs})
    varied = Table(
        title=f"What they vary by: {len(runs)} runs, sessions: {sessions}",
        columns=(
            *("rate", "mean", "sd inside a session, %", "95 % interval, %"),
            *("sd between sessions, %", "share of sessions", "first runs, %", "± %"),
            "correlation of neighbours",
        ),
    )
    values: dict[str, object] = {
        "runs": [{"session": r.session, "position": r.position, **r.rates} for r in runs]
    }
    for rate in RATES if runs else ():
        found = components(runs, rate)
        values[rate] = found
        varied.rows.append((rate, show(means[rate], 4), *_cells(found, len(runs) - sessions)))
    return Answer(
        tables=[varied, by_run],
        values=values,
        notes=[
            "Nothing changed between these runs. Sessions are minutes apart here and days apart in "
            "use: the spread between them is the least that is to be expected. Four sessions show "
            "it to within a factor of about four; `pytest-mlperf calibrate` measures more sessions."
        ],
    )


def _cells(found: Mapping[str, float | None], freedom: int) -> Iterator[str]:
    run = found["run"]
    yield show(None if run is None else 100 * run, 2)
    low, high = sd_interval(run, freedom) if run is not None else (None, None)
    yield "" if low is None or high is None else f"{100 * low:.2g} … {100 * high:.3g}"
    session = found["session"]
    yield show(None if session is None else 100 * session, 2)
    yield show(found["share"], 2)
    yield percent(found["first"])
    yield show(None if found["first_se"] is None else 100 * found["first_se"], 2)
    yield show(found["neighbours"], 2)


def main() -> None:
    """Be a session or a run, as stdin says."""
    asked: Asked = json.load(sys.stdin)
    die_with_parent(asked["parent"])
    if not asked["runs"]:
        print(json.dumps(_rates(asked["device"], asked["window_s"])), flush=True)
        return
    for _ in range(asked["runs"]):
        one = Asked(**{**asked, "runs": 0, "parent": os.getpid()})
        if code := _start(one, new_group=False).wait():
            sys.exit(code)


if __name__ == "__main__":
    main()
