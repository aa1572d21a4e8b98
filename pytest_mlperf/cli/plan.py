"""`pytest-mlperf plan`: what would be measured and for how long; runs and imports no engine."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.history import Sessions, add_runs_dir, costs
from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.cli.plan_jobs import jobs_of
from pytest_mlperf.cli.plan_slurm import script
from pytest_mlperf.cli.suites import add_suites, find_suites, node_id, read_suites, rootdir
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import json_text
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.phases import gated_pairs
from pytest_mlperf.reports import selection
from pytest_mlperf.reports.layout import fold
from pytest_mlperf.reports.selection import Cost, cost_of
from pytest_mlperf.stores.manifest import KIND, SCHEMA
from pytest_mlperf.suite.pairs import Testable, plan_pairs
from pytest_mlperf.suite.plan import Planned

MATRIX_LIMIT = 256
"""Jobs that GitHub makes of one matrix at most."""

Costs = Mapping[tuple[Path, str], Cost]


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "plan",
        summary="cases, runs, minutes and accelerator-hours",
        description=(
            "Lists what pytest would measure, and for how long. Times come from the suites;\n"
            "where the runs folder holds earlier sessions of a case, from what those took,\n"
            "loading and accuracy pass included. All accelerators are planned for, whether\n"
            "they are here or not. For a selection by -m or -k use pytest's own plan:\n"
            "pytest suites -m \"mlperf(scenario='Offline')\" --mlperf-plan"
        ),
        needs="suite files; no accelerator, model or data set",
        examples=[
            ("plan", "a table of every case below suites/, with the time it needs"),
            (
                "plan suites/datacenter --accelerator H200 --format json",
                "the manifest of what an H200 machine must report: every test id",
            ),
            (
                "plan --format github --profile official",
                "a matrix for GitHub Actions: accelerator, suite, runner, minutes",
            ),
            (
                "plan --format slurm > mlperf.sh && bash mlperf.sh",
                "arrays of Slurm jobs, and a last one that joins and judges",
            ),
        ],
    )
    add_suites(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json", "github", "slurm"],
        default="table",
        help="table to read, json manifest, GitHub matrix on one line, or a script for Slurm",
    )
    parser.add_argument(
        "--accelerator",
        action="append",
        default=[],
        metavar="NAME",
        help='only cases of this accelerator ("H200", "8xH100", "cpu"); repeatable',
    )
    parser.add_argument(
        "--profile", choices=["quick", "official"], help="plan every suite in this profile"
    )
    parser.add_argument(
        "--max-runs", type=_count, default=5, metavar="N", help="most runs of a case (default 5)"
    )
    add_runs_dir(parser)
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError("at least 2: one run alone never fails")
    return count


def run(parsed: argparse.Namespace) -> int:
    """Print the plan.

    Raises:
        MlperfError: A suite is defective, nothing matches, or the matrix is too large.
    """
    cases = read_suites(find_suites(parsed.suites), parsed.profile)
    planned = _on(with_pairs(cases), parsed.accelerator)
    sessions = Sessions(parsed.runs_dir)
    known = costs(sessions)
    measured = {
        (case.path, case.case.id): known[case.case.id, case.suite.profile]
        for case in planned
        if (case.case.id, case.suite.profile) in known
    }
    if parsed.format == "github":
        print(json.dumps(matrix(jobs_of(planned, measured, parsed.max_runs))))
    elif parsed.format == "slurm":
        text = script(
            jobs_of(planned, measured, parsed.max_runs),
            suites=list(map(str, parsed.suites)),
            accelerators=parsed.accelerator,
            profile=parsed.profile,
        )
        print(text, end="")
    elif parsed.format == "json":
        root = rootdir(parsed.suites)
        content = manifest(planned, measured, root=root, max_runs=parsed.max_runs)
        print(json_text(content))
    else:
        show(_table(planned, measured, parsed.max_runs))
        show(sessions.notes)
    return 0


def with_pairs(planned: Sequence[Planned]) -> list[Testable]:
    """Return the cases of several suites, each suite's followed by its pairs."""
    suites: dict[Path, list[Planned]] = defaultdict(list)
    for case in planned:
        suites[case.path].append(case)
    found: list[Testable] = []
    for cases in suites.values():
        found += [*cases, *plan_pairs(cases)]
    return found


def _on(planned: list[Testable], accelerators: Sequence[str]) -> list[Testable]:
    """Return what these accelerators are needed for; everything where none is named."""
    known = dict.fromkeys(name for case in planned for name in case.accelerators)
    for name in accelerators:
        if name not in known:
            raise MlperfError(f"no case runs on {name!r}; these suites name: {', '.join(known)}")
    named = set(accelerators)
    return [case for case in planned if not named or named & set(case.accelerators)]


# --- table -----------------------------------------------------------------------------------


def _table(planned: Sequence[Testable], measured: Costs, max_runs: int) -> list[str]:
    wanted = {(case.path, case.case.id): set(case.kinds) for case in planned}
    lines = selection.plan(planned, wanted, width(), max_runs=max_runs, measured=measured)
    shown = [
        f"{name} {_hours(least)} to {_hours(most)}"
        for name, (least, most) in accelerator_hours(planned, measured, max_runs).items()
    ]
    return [*lines, *fold(f"accelerator-hours: {', '.join(shown)}", width())]


def accelerator_hours(
    planned: Sequence[Testable], measured: Costs, max_runs: int
) -> dict[str, tuple[float, float]]:
    """Return the least and most hours by accelerator; "8xH100" counts eight at a time."""
    hours: dict[str, tuple[float, float]] = {}
    for case in planned:
        cost = cost_of(case, measured)
        for name in case.accelerators:
            count = split(name)[0]
            least, most = hours.get(name, (0.0, 0.0))
            hours[name] = (
                least + count * cost.first_s / 3600,
                most + count * cost.at_most_s(max_runs) / 3600,
            )
    return hours


def _hours(hours: float) -> str:
    return f"{hours:.2g}" if hours < 10 else f"{hours:.0f}"


# --- json ------------------------------------------------------------------------------------


def manifest(
    planned: Sequence[Testable], measured: Costs, *, root: Path, max_runs: int
) -> dict[str, Any]:
    """Return every test that must report, and what each case costs.

    Args:
        planned: The cases.
        measured: What earlier sessions took.
        root: The folder that pytest's node ids start from.
        max_runs: Most runs of a case.
    """
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "max_runs": max_runs,
        "tests": [
            {
                "test": node_id(case, kind, root),
                "kind": kind,
                "case": case.case.id,
                "accelerator": case.case.accelerator,
                "pairs": gated_pairs(case, kind, power=True, meter=False),
            }
            for case in planned
            for kind in case.kinds
        ],
        "cases": [_case(case, cost_of(case, measured), max_runs) for case in planned],
        "accelerator_hours": {
            name: {"least": round(least, 4), "most": round(most, 4)}
            for name, (least, most) in accelerator_hours(planned, measured, max_runs).items()
        },
    }


def _case(case: Testable, cost: Cost, max_runs: int) -> dict[str, Any]:
    return {
        **asdict(case.case),
        "id": case.case.id,
        "suite": selection.relative(case.path),
        "line": case.line,
        "round": case.suite.round,
        "profile": case.suite.profile,
        "runs": {"least": case.fewest_runs, "most": max_runs},
        "seconds": {
            "least": round(cost.first_s, 1),
            "most": round(cost.at_most_s(max_runs), 1),
            "sessions": cost.sessions,
        },
    }


# --- github ----------------------------------------------------------------------------------


def matrix(jobs: Mapping[str, Mapping[str, int]]) -> dict[str, list[dict[str, Any]]]:
    """Return a GitHub matrix with one job per accelerator and suite, in a stable order.

    Args:
        jobs: By accelerator and suite file, the minutes that a job may take.

    Raises:
        MlperfError: It has more jobs than GitHub makes.
    """
    rows = [
        {
            "accelerator": accelerator,
            "suite": suite,
            "runner": runner_labels(accelerator),
            "minutes": minutes,
        }
        for accelerator, suites in jobs.items()
        for suite, minutes in suites.items()
    ]
    if len(rows) > MATRIX_LIMIT:
        shown = ", ".join(f"{name} {len(suites)}" for name, suites in jobs.items())
        raise MlperfError(
            f"{len(rows)} jobs, GitHub makes {MATRIX_LIMIT} of a matrix at most ({shown}); name "
            "fewer suites, or plan one --accelerator at a time"
        )
    return {"include": rows}


def runner_labels(accelerator: str) -> list[str]:
    """Return the labels a runner needs: "gpu-h200" for "H200", "gpu-8xh200" for "8xH200"."""
    own = "cpu" if split(accelerator)[1] == "cpu" else f"gpu-{accelerator.lower()}"
    return ["self-hosted", "linux", own]
