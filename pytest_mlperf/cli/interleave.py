"""`pytest-mlperf compare --interleave`: two engine entries or builds, measured in turns."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.calibrated import rule_for
from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.cli.interleave_cases import Given, cases, given
from pytest_mlperf.cli.output import clean, show, width
from pytest_mlperf.confirm import NotComparable, Side, in_turns
from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.core.judge.ratio import Ratio
from pytest_mlperf.core.judge.rule_r import Decision
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import limit as shown_limit
from pytest_mlperf.core.numbers import quantity, times
from pytest_mlperf.core.reason import measured_again
from pytest_mlperf.core.verdict import SEVERITY, Outcome
from pytest_mlperf.hardware.machine import detect, split
from pytest_mlperf.reports.layout import fold, paragraph, paragraphs, table, unbroken
from pytest_mlperf.run.builds import LABEL, baseline_build
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.folders import ignored_in_git, new_id
from pytest_mlperf.run.measure import new_folder
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.run.tries import Unjudgeable
from pytest_mlperf.suite.find import LOADED
from pytest_mlperf.suite.plan import Planned

PAIRS = 5

LEASE_S = 21_600.0

INTERLEAVE_EXAMPLES = (
    (
        "compare --interleave a.mlperf.toml b.mlperf.toml",
        "measure both now, A B, B A, …: is B worse?",
    ),
    (
        "compare --interleave s.mlperf.toml@baseline s.mlperf.toml",
        "this build beside the one that baseline_engine names",
    ),
)

WORDS = {
    Decision.FAIL: Outcome.PERF_DROP,
    Decision.INCONCLUSIVE: Outcome.INCONCLUSIVE,
    Decision.MORE: Outcome.INCONCLUSIVE,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What runs of one case in turns gave: B set against A.

    Attributes:
        name: Its scenario and accelerator.
        a, b: The sides, with their runs.
        ratios: What each metric says.
        limits: The limits that it was judged by.
        why: Why it could not be judged; "" where it could.
    """

    name: str
    a: Side
    b: Side
    ratios: Mapping[str, Ratio]
    limits: Mapping[str, float]
    why: str = ""

    @property
    def outcomes(self) -> list[Outcome]:
        """The word of each metric."""
        return [Outcome.INVALID] if self.why else [_word(one) for one in self.ratios.values()]


def add_interleave(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `compare` what belongs to runs in turns."""
    parser.add_argument(
        "--interleave", action="store_true", help="A and B are suites: measure them now, in turns"
    )
    parser.add_argument("--case", metavar="ID", help="with --interleave: only this case of A or B")
    parser.add_argument(
        "--pairs",
        type=_pairs,
        default=PAIRS,
        metavar="N",
        help=f"with --interleave: most pairs of runs, at least 2 (default {PAIRS})",
    )


def run_interleaved(parsed: argparse.Namespace) -> int:
    """Measure two sides in turns and print their ratio.

    Returns:
        1 when a drop is proven, 2 when nothing could be judged, else 0.

    Raises:
        MlperfError: A side names nothing that can run, or the two cannot be compared.
    """
    a, b = given(parsed.a), given(parsed.b)
    pairs = list(cases(a, b, parsed.case))
    run_id = new_id()
    folder = _folder(parsed.runs_dir, run_id)
    conditions = Conditions(
        folder=folder,
        session=run_id,
        commit=None,
        handicap=0.0,
        patience=Patience(),
        lease_limit_s=LEASE_S,
        machine=detect(gpus=any(split(x.case.accelerator)[1] != "cpu" for x, _ in pairs)),
        power=False,
        control=False,
    )
    policy = Policy(max_runs=parsed.pairs, accuracy=parsed.runs_dir / "accuracy", root=Path.cwd())
    found = []
    with ExitStack() as stack:
        for x, y in pairs:
            sides = [
                _side(stack, one, planned, conditions, policy) for one, planned in ((a, x), (b, y))
            ]
            found.append(measured(sides[0], sides[1], parsed.pairs))
    show(_page(found, (a.text, b.text), folder))
    outcomes = [word for one in found for word in one.outcomes]
    if Outcome.PERF_DROP in outcomes:
        return 1
    return 2 if all(one.why for one in found) else 0


# --- measuring -------------------------------------------------------------------------------


def measured(a: Side, b: Side, pairs: int) -> Found:
    """Run two sides in turns and judge B against A by the limits of B's suite.

    Raises:
        MlperfError: A process broke, or something is not here.
    """
    case, other = a.planned.case, b.planned.case
    machines = dict.fromkeys((case.accelerator, other.accelerator))
    limits = b.planned.limits
    found: Mapping[str, Ratio] = {}
    why = ""

    def same_rate() -> None:
        if case.scenario in LOADED:
            b.rate = a.rate

    rule = rule_for("-vs-".join(machines), pairs)
    try:
        found = in_turns(b, a, limits, rule, check=same_rate)
    except (NotComparable, Unjudgeable) as error:
        why = str(error)
    name = f"{case.workload} {case.scenario} on {' and '.join(machines)}"
    return Found(name=name, a=a, b=b, ratios=found, limits=limits, why=why)


def _side(
    stack: ExitStack, one: Given, planned: Planned, conditions: Conditions, policy: Policy
) -> Side:
    """Return a side; the build of its baseline is kept until the stack is left."""
    build = None
    if one.baseline:
        folder = new_folder(conditions.folder, f"{planned.case.id}.{LABEL}")
        build = stack.enter_context(baseline_build(planned, folder))
    rate = CaseRuns(planned, conditions, policy, _progress).rate
    return Side(planned, conditions, _progress, rate=rate, build=build)


def _folder(runs_dir: Path, run_id: str) -> Path:
    """Return the folder of this session, which git is told to ignore.

    Raises:
        EnvironmentFault: It cannot be made.
    """
    folder = runs_dir / "runs" / run_id
    try:
        ignored_in_git(runs_dir)
        folder.mkdir(parents=True)
    except OSError as error:
        raise EnvironmentFault(f"{runs_dir} cannot be written: {error.strerror}") from None
    return folder


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{clean(line)[: width() - 1]}\x1b[K", end="", file=sys.stderr, flush=True)


def _pairs(text: str) -> int:
    if not text.isdigit() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 2")
    return int(text)


# --- the page --------------------------------------------------------------------------------


def _page(found: Sequence[Found], names: tuple[str, str], folder: Path) -> list[str]:
    _progress("")
    columns = width()
    lines = [
        line
        for name, text in zip("AB", names, strict=True)
        for line in paragraph(name, text, columns)
    ]
    rows = [(one, row) for one in found for row in _rows(one)]
    head, *body = table(
        ["verdict", "metric", "A", "B", "ratio", "interval", "limit", "pairs"],
        [row for _, row in rows],
        columns - 2,
        left=["verdict", "metric"],
        spare=["pairs", "A", "limit"],
    )
    lines += ["", f"  {head}"]
    last = ""
    for (one, _), text in zip(rows, body, strict=True):
        if one.name != last:
            lines.append(one.name)
            lines += _measured_again(one, columns)
        last = one.name
        lines.append(f"  {text}")
        lines += fold(one.why, columns, first="    ", rest="    ") if one.why else []
    notes = [
        "ratio is how many times better B is than A, from runs in turns, A B, B A, …, each a fresh "
        "process; the ends of the interval decide",
        "accuracy was not run: a fast wrong answer shows only in pytest -k accuracy",
    ]
    lines += paragraphs("note", notes, columns)
    lines += paragraph("runs", str(folder), columns)
    outcomes = [word for one in found for word in one.outcomes]
    counts = ", ".join(unbroken(f"{outcomes.count(w)} {w}") for w in SEVERITY if w in outcomes)
    return [*lines, *fold(counts, columns)]


def _measured_again(one: Found, columns: int) -> list[str]:
    """Return which runs were INVALID; where that ended the case, the reason stands for them."""
    invalid = [run.invalid for side in (one.a, one.b) for run in side.invalid_runs]
    if one.why or not invalid:
        return []
    return fold(measured_again(invalid), columns, first="  ", rest="    ")


def _rows(one: Found) -> list[Mapping[str, str]]:
    if one.why:
        return [{"verdict": str(Outcome.INVALID)}]
    return [
        {
            "verdict": str(_word(ratio)),
            "metric": METRICS[name].title,
            "A": quantity(name, _mean(one.a, name, ratio.pairs)),
            "B": quantity(name, _mean(one.b, name, ratio.pairs)),
            "ratio": times(ratio.ratio),
            "interval": f"{times(ratio.low)} to {times(ratio.high)}",
            "limit": shown_limit(name, one.limits[name]),
            "pairs": str(ratio.pairs),
        }
        for name, ratio in one.ratios.items()
    ]


def _word(ratio: Ratio) -> Outcome:
    if ratio.decision is Decision.PASS:
        return Outcome.IMPROVED if ratio.improved else Outcome.OK
    return WORDS[ratio.decision]


def _mean(side: Side, metric: str, pairs: int) -> float:
    sample = [run.metrics[metric] for run in side.runs[:pairs]]
    return math.exp(math.fsum(map(math.log, sample)) / len(sample))
