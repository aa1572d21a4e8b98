"""`pytest-mlperf plan`: list planned cases and estimate their time, without importing engines."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from pytest_mlperf.bench.case import baseline_file, baselines_root, load_checked
from pytest_mlperf.bench.policy import Policy, gated_pairs, rule_of_baseline
from pytest_mlperf.cli import suites
from pytest_mlperf.cli.across import Prices, price_in_words, read_prices
from pytest_mlperf.cli.arguments import REPEATABLE, accelerator, add
from pytest_mlperf.cli.output import integer_type, show, width
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.guarantees import APPEND_OPTIONS, MISSING_OPTION, Guarantee, guarantee
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.untrusted_text import json_text
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.reports.costs import CaseCost, Costs, cost_of, measured_costs
from pytest_mlperf.reports.terminal import selection
from pytest_mlperf.reports.terminal.layout import fold, relative
from pytest_mlperf.reports.terminal.selection import extra_time_lines
from pytest_mlperf.stores.results import MANIFEST_KIND, MANIFEST_SCHEMA
from pytest_mlperf.stores.sessions import Sessions
from pytest_mlperf.suite.model import PHASES
from pytest_mlperf.suite.pairs import SuiteTest, plan_pairs
from pytest_mlperf.suite.plan import Planned, url_of

MATRIX_LIMIT = 256
"""GitHub's limit for the jobs of a matrix."""

JOB_MINUTES = 5 * 24 * 60
"""GitHub's limit for a job on a self-hosted runner (minutes)."""

HELP = """\
Lists the cases that pytest would measure, and their time. Times come from the
suites, or from earlier sessions in the runs folder, which include loading and
accuracy passes. The plan covers all accelerators, also those of other machines.
To plan a selection by -m or -k, use pytest:
pytest suites -m "mlperf(scenario='Offline')" --mlperf-plan

needs: suite files; no accelerator, model or data set

examples:
  $ pytest-mlperf plan
      every case in suites/, with its time
  $ pytest-mlperf plan suites/datacenter --accelerator H200 --format json
      the manifest: ids of all tests that an H200 machine must report
  $ pytest-mlperf plan --format github --profile official
      a matrix for GitHub Actions: accelerator, suite, runner, minutes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add(parser, "suites", "--accelerator", "--prices", "--runs-dir")
    parser.add_argument(
        "--format",
        choices=["table", "json", "github"],
        default="table",
        help=(
            "table; json: manifest for other commands; github: matrix on one line (default: table)"
        ),
    )
    parser.add_argument(
        "--fleet",
        **REPEATABLE,
        type=accelerator,
        metavar="NAME",
        help="plan only cases on this accelerator, which a runner has; repeatable",
    )
    parser.add_argument(
        "--profile", choices=["quick", "official"], help="plan every suite in this profile"
    )
    parser.add_argument(
        "--max-runs",
        type=integer_type(2),
        metavar="N",
        help=f"maximum runs of a case (default {Policy.max_runs}), as --mlperf-max-runs of pytest",
    )
    parser.add_argument(
        "--compliance",
        action="store_true",
        help="include MLPerf's compliance tests, as pytest --mlperf-compliance",
    )


def run(parsed: argparse.Namespace) -> int:
    """Print the planned tests as a table, as JSON, or as a job matrix for GitHub; return 0."""
    files = suites.find_suites(parsed.suites)
    cases = suites.read_suites(files, parsed.profile, audited=parsed.compliance)
    tests, named = with_pairs(cases), set(parsed.accelerator)
    suites.require_accelerators(named, (name for one in tests for name in one.accelerators))
    planned = [one for one in tests if not named or named & set(one.accelerators)]
    if parsed.prices and parsed.format != "table":
        raise MlperfError("--prices needs --format table")
    if parsed.fleet:
        planned = on_fleet(planned, parsed.fleet)
    sessions = Sessions(parsed.runs_dir)
    measured = measured_costs(planned, sessions)
    max_runs = parsed.max_runs or Policy.max_runs
    jobs = jobs_of(planned, measured, max_runs)
    if parsed.format == "github":
        print(json.dumps(matrix(jobs)))
    elif parsed.format == "json":
        root = suites.rootdir(parsed.suites)
        content = manifest(planned, measured, root=root, max_runs=max_runs)
        words = [f"--mlperf-profile={parsed.profile}"] if parsed.profile else []
        words += [f"--mlperf-max-runs={parsed.max_runs}"] if parsed.max_runs else []
        words += ["--mlperf-compliance"] * parsed.compliance
        print(json_text({**content, "jobs": jobs, "options": words}))
    else:
        show(_table(planned, measured, max_runs))
        prices = read_prices(parsed.prices) if parsed.prices else {}
        for spent in money(planned, measured, max_runs, prices):
            show(fold(spent, width()))
        show(sessions.notes)
    return 0


def money(
    planned: Sequence[SuiteTest], measured: Costs, max_runs: int, prices: Prices
) -> list[str]:
    """Return the cost of a plan and the prices used, as text; [] without prices.

    `prices` override prices in the suites; `measured` has times from earlier sessions.
    """
    used: dict[str, None] = {}
    without: dict[str, None] = {}
    cost = (0.0, 0.0)
    for case in planned:
        for name, (least, most) in accelerator_hours([case], measured, max_runs).items():
            kind = split(name)[1]
            price = prices.get(name) or prices.get(kind) or case.suite.price(name)
            if price is None:
                without[kind] = None
                continue
            used[price_in_words(name if name in prices else kind, price)] = None
            usd = price.usd_per_gpu_hour
            cost = (cost[0] + usd * least, cost[1] + usd * most)
    if not used:
        return [f"cost: unknown; [prices] lacks {', '.join(without)}"] if prices else []
    rest = f", without {', '.join(without)}, which [prices] lacks" if without else ""
    return [f"cost: {cost[0]:,.2f} to {cost[1]:,.2f} USD{rest}", f"prices: {'; '.join(used)}"]


def on_fleet(planned: Sequence[SuiteTest], fleet: Sequence[str]) -> list[SuiteTest]:
    """Return the tests that a fleet's accelerators can run; raise MlperfError if there are none."""
    there = [one for one in planned if set(one.accelerators) <= set(fleet)]
    if not there:
        names = ", ".join(dict.fromkeys(name for one in planned for name in one.accelerators))
        raise MlperfError(f"no case runs on {', '.join(fleet)}; the suites use: {names or 'none'}")
    return there


def with_pairs(planned: Sequence[Planned]) -> list[SuiteTest]:
    """Return all cases; the claim pairs of a suite follow its cases."""
    tests: list[SuiteTest] = []
    for _, suite in groupby(planned, key=lambda case: case.path):
        cases = list(suite)
        tests += [*cases, *plan_pairs(cases)]
    return tests


def _table(planned: Sequence[SuiteTest], measured: Costs, max_runs: int) -> list[str]:
    kinds = {(case.path, case.case.id): set(case.kinds) for case in planned}
    rows = [
        f"{name} {' to '.join(f'{each:.2g}' if each < 10 else f'{each:.0f}' for each in hours)}"
        for name, hours in accelerator_hours(planned, measured, max_runs).items()
    ]
    more = [
        *extra_time_lines(planned, max_runs=max_runs),
        f"accelerator-hours: {', '.join(rows)}",
        guarantee_summary(planned, error_guarantees(planned)),
    ]
    return selection.plan(planned, kinds, width(), max_runs=max_runs, measured=measured, more=more)


def accelerator_hours(
    planned: Sequence[SuiteTest], measured: Costs, max_runs: int
) -> dict[str, tuple[float, float]]:
    """Return (min, max) GPU-hours by accelerator; one hour of "8xH100" counts as 8."""
    hours: dict[str, tuple[float, float]] = {}
    for case in planned:
        cost = cost_of(case, measured)
        for name in (case.case.accelerator,) if url_of(case) else case.accelerators:
            count = split(name)[0]
            least, most = hours.get(name, (0.0, 0.0))
            hours[name] = (
                least + count * cost.first_s / 3600,
                most + count * cost.at_most_s(max_runs) / 3600,
            )
    return hours


def manifest(
    planned: Sequence[SuiteTest], measured: Costs, *, root: Path, max_runs: int
) -> dict[str, Any]:
    """Return the manifest: all tests that must report a result, and the cost of each case."""
    held = error_guarantees(planned)
    return {
        "schema": MANIFEST_SCHEMA,
        "kind": MANIFEST_KIND,
        "max_runs": max_runs,
        "tests": [
            {
                "test": suites.node_id(case, kind, root),
                "kind": kind,
                "case": case.case.id,
                "accelerator": case.case.accelerator,
                "pairs": gated_pairs(case, kind, power=True, meter=False),
            }
            for case in planned
            for kind in case.kinds
        ],
        "cases": [_case(case, cost_of(case, measured), max_runs, held) for case in planned],
        "accelerator_hours": {
            name: {"least": round(least, 4), "most": round(most, 4)}
            for name, (least, most) in accelerator_hours(planned, measured, max_runs).items()
        },
    }


def _case(case: SuiteTest, cost: CaseCost, max_runs: int, held: Promises) -> dict[str, Any]:
    baseline, data = held.get((case.path, case.case.id)), {}
    if isinstance(case, Planned) and case.scorer_name and not case.data.shared:
        data = {phase: case.data.source(phase).title for phase in PHASES}
    return {
        **asdict(case.case),
        "id": case.case.id,
        "suite": relative(case.path),
        "line": case.line,
        "round": case.suite.round,
        "profile": case.suite.profile,
        "runs": {"least": case.fewest_runs, "most": max_runs},
        "seconds": {
            "least": round(cost.first_s, 1),
            "most": round(cost.at_most_s(max_runs), 1),
            "sessions": cost.sessions,
        },
        "baseline": asdict(baseline) if baseline else None,
        **({"data": data} if data else {}),
    }


def matrix(jobs: Mapping[str, Mapping[str, int]]) -> dict[str, list[dict[str, Any]]]:
    """Return a GitHub Actions matrix: a job per accelerator and suite; `jobs` has the minutes."""
    rows = [
        {
            "accelerator": name,
            "suite": suite,
            "runner": runner_labels(name),
            "minutes": min(minutes, JOB_MINUTES),
        }
        for name, files in jobs.items()
        for suite, minutes in files.items()
    ]
    if len(rows) > MATRIX_LIMIT:
        counts = ", ".join(f"{name} {len(files)}" for name, files in jobs.items())
        raise MlperfError(
            f"{len(rows)} jobs, but a GitHub matrix has at most {MATRIX_LIMIT} ({counts}); name "
            "fewer suites, or one --accelerator"
        )
    return {"include": rows}


def runner_labels(accelerator: str) -> list[str]:
    """Return the labels of a runner, e.g. "gpu-8xh200" for "8xH200"."""
    label = "cpu" if split(accelerator)[1] == "cpu" else f"gpu-{accelerator.lower()}"
    return ["self-hosted", "linux", label]


JOB_TIME_FACTOR = 3
"""Factor of a job's time limit over its plan, which omits loading and accuracy passes."""

LOADING_SECONDS = 300.0
"""Assumed time of loading in a process on GPUs: 140 GB of weights at 1 GB/s, and compiling."""

ACCURACY_PASS_SECONDS = 3600.0
"""Assumed time of an accuracy pass over a whole MLPerf data set."""

GENERATING_PASS_SECONDS = 8 * 3600.0
"""Assumed time of an accuracy pass with generated answers, or on a CPU. The slowest official passes
on 8 H200: 7.5 hours for Llama 3.1 405B (v5.1, Interactive), 4 for Wan 2.2 (v6.0)."""

GENERATING_TASKS = {
    *("summarization", "mixed-language", "reasoning", "multimodal", "function-calling"),
    *("retrieval-augmented", "text-to-image", "text-to-video"),
}
"""Tasks with generated answers, besides those of language models."""

MIN_JOB_MINUTES = 30


def jobs_of(
    planned: Sequence[SuiteTest], measured: Costs, max_runs: int
) -> dict[str, dict[str, int]]:
    """Return each CI job's time limit [min] for `max_runs` runs a case, by accelerator and file."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case in planned:
        for name in case.accelerators:
            spent = JOB_TIME_FACTOR * cost_of(case, measured).at_most_s(max_runs)
            audits = sum(kind.is_audit for kind in case.kinds)
            if (case.path, case.case.id) in measured:  # those sessions may have made none
                spent += JOB_TIME_FACTOR * audits * case.seconds_per_run
            elif split(name)[1] != "cpu":
                spent += (max_runs * case.fewest_runs + audits) * LOADING_SECONDS
                rules = case.suite.rules
                long = rules is not None and (rules.tokens or rules.task in GENERATING_TASKS)
                spent += _pass_s(case, GENERATING_PASS_SECONDS if long else ACCURACY_PASS_SECONDS)
            elif case.suite.is_mlperf:
                spent += _pass_s(case, GENERATING_PASS_SECONDS)
            seconds[name][relative(case.path)] += spent
    return {
        name: {
            suite: max(MIN_JOB_MINUTES, math.ceil(spent / 60))
            for suite, spent in sorted(files.items())
        }
        for name, files in sorted(seconds.items())
    }


def _pass_s(case: SuiteTest, seconds: float) -> float:
    return seconds if Kind.ACCURACY in case.kinds and case.suite.rules is not None else 0.0


Promises = Mapping[tuple[Path, str], Guarantee]


def error_guarantees(planned: Iterable[SuiteTest]) -> dict[tuple[Path, str], Guarantee]:
    """Return error guarantees by (suite, case id); skip missing and damaged baselines."""
    cases = (case for case in planned if isinstance(case, Planned))
    return {(case.path, case.case.id): held for case in cases if (held := _promise(case))}


def guarantee_summary(planned: Iterable[SuiteTest], guarantees: Promises) -> str:
    """Return how many baselines permit final verdicts, as text; "" without baselines."""
    cases = sum(isinstance(case, Planned) for case in planned)
    if not guarantees:
        return ""
    lacks = [one.lacks for one in guarantees.values()]
    parts = [f"{len(guarantees)} for {plural(cases, 'case')}"]
    if few := lacks.count("few sessions"):
        parts.append(
            f"{few} with fewer than {DAYS} days, so verdicts are provisional: repeat "
            f"{MISSING_OPTION} on other days"
        )
    if old := lacks.count("old"):
        parts.append(f"{old} too old for a final verdict: renew with {APPEND_OPTIONS}")
    if ends := sorted(p.final_until for p in guarantees.values() if p.final_until and not p.lacks):
        parts.append(
            f"final until {ends[0]} or later; to renew one: {APPEND_OPTIONS} with the same build"
        )
    return f"baselines: {'; '.join(parts)}"


def _promise(planned: Planned) -> Guarantee | None:
    case, suite = planned.case, planned.suite
    file = baseline_file(baselines_root(None, planned.path, suite.division), case, suite.profile)
    try:
        loaded = load_checked(file, case)
        if loaded is None or not loaded.records:
            return None
        record = max(loaded.records, key=lambda one: one.runs[-1].started)
        rule, learnt = rule_of_baseline(file, case.accelerator, record.identity, Policy.max_runs)
    except BaselineError:
        return None
    return guarantee(record, rule, calibrated=learnt is not None, now=dt.datetime.now(dt.UTC))
