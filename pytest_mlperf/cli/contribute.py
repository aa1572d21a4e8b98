"""`pytest-mlperf contribute`: baselines of a named machine for everybody, with what proves them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_mlperf.bench.contributed import (
    MACHINE,
    RECORDS,
    Lookup,
    Proven,
    contents,
    faults,
    prove,
    read_machine,
    slug,
)
from pytest_mlperf.cli.output import show
from pytest_mlperf.cli.store import add_store, store_here
from pytest_mlperf.cli.stored_results import add_runs_dir
from pytest_mlperf.core.baseline import SESSIONS
from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.judge.rule_r import GATING_RUNS
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import LABEL, Results
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.atomic import write_folder
from pytest_mlperf.stores.database import Store, StoreError, opened
from pytest_mlperf.stores.results import read_whole

HELP = f"""\
baselines of a named machine for everybody, with their proof

Writes a folder for a pull request: the records of a machine that others can
rent or buy, the results of every session that made their runs, and the suites.
Values without their session, of fewer than {GATING_RUNS} runs or {SESSIONS} sessions, of code
that is in no commit, slowed or with random weights are refused, each with its
reason. --check tells of a folder whether everything in it is as it says.

Others judge by it: pytest suites --mlperf-baselines FOLDER/baselines
{LABEL}

Exit 1 when something was refused or a check failed, 2 when nothing is left.

needs: the sessions' results: in the runs folder, or a store

examples:
  $ pytest-mlperf contribute --machine "AWS p5.48xlarge" --by Acme
      machines/aws-p5.48xlarge of every baseline that its sessions prove
  $ pytest-mlperf contribute --check machines/aws-p5.48xlarge
      before it is merged, and in CI
"""

MACHINES = Path("machines")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument(
        "baselines", type=Path, nargs="*", metavar="BASELINES", help="files or folders (baselines)"
    )
    parser.add_argument("--machine", metavar="NAME", help="what others rent or buy it by")
    parser.add_argument("--by", metavar="WHO", help="who measured")
    parser.add_argument(
        "--source", default="", metavar="URL", help="where the measured project can be had"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help=f"new folder (default {MACHINES}/NAME)"
    )
    parser.add_argument("--check", action="store_true", help="check contributed folders instead")
    add_store(parser)
    add_runs_dir(parser)


def run(parsed: argparse.Namespace) -> int:
    """Write a contribution, or check some."""
    if parsed.check:
        return _check(parsed)
    for name in ("machine", "by"):
        if not (getattr(parsed, name) or "").strip():
            raise MlperfError(f"--{name} is missing: others must know whose values these are")
    name = slug(parsed.machine)
    if not name:
        raise MlperfError(f"--machine {parsed.machine!r} has no letter and no digit")
    proven, refused = _proven(parsed)
    show(f"refused: {reason}" for reason in refused)
    if not proven:
        raise MlperfError("no baseline is left to contribute")
    files = contents(proven, Path.cwd(), name=parsed.machine, by=parsed.by, source=parsed.source)
    folder = parsed.output or MACHINES / name
    write_folder(folder, files)
    count = len({session.run for one in proven for session in one.sessions})
    show(
        [
            f"wrote {plural(len(proven), 'baseline')} of {plural(count, 'session')}: {folder}",
            f"others judge by it: pytest suites --mlperf-baselines {folder / RECORDS}",
        ]
    )
    return int(bool(refused))


def _check(parsed: argparse.Namespace) -> int:
    if not parsed.baselines:
        raise MlperfError(f"--check needs a folder with {MACHINE}")
    bad = 0
    for folder in parsed.baselines:
        machine, wrong = read_machine(folder), list(faults(folder))
        lines = [f"{relative(folder)}: {fault}" for fault in wrong]
        count = sum(name.startswith(f"{RECORDS}/") for name in machine.files)
        good = f"{relative(folder)}: {machine.name}, by {machine.by}: {plural(count, 'baseline')}"
        show(lines or [f"{good}, each proven by its sessions"])
        bad += bool(wrong)
    return int(bool(bad))


def _proven(parsed: argparse.Namespace) -> tuple[list[Proven], list[str]]:
    """Return the records that their sessions prove, and why others are refused."""
    files = [file for place in parsed.baselines or [Path("baselines")] for file in _files(place)]
    if not files:
        raise MlperfError("no performance baseline is here; name files or folders of them")
    if url := store_here(parsed.store):
        with opened(url) as store:
            return _each(files, _lookup(parsed.runs_dir, store))
    return _each(files, _lookup(parsed.runs_dir, None))


def _each(files: list[Path], lookup: Lookup) -> tuple[list[Proven], list[str]]:
    proven, refused = list[Proven](), list[str]()
    for file in files:
        baseline = baselines.load(file)
        for record in baseline.records if baseline else ():
            try:
                assert baseline is not None
                proven.append(prove(file, baseline, record, lookup))
            except BaselineError as error:
                gpu = record.identity.get("gpu") or record.identity.get("cpu") or "a machine"
                refused.append(f"{relative(file)}, {gpu}: {error}")
    return proven, refused


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    else:
        yield from (path for path in sorted(place.rglob("*.json")) if baselines.is_place(path))


def _lookup(runs_dir: Path, store: Store | None) -> Lookup:
    """Return what finds a session: in the runs folder, else in the store."""
    read: dict[str, Results | None] = {}

    def look(run: str) -> Results | None:
        if run not in read:
            file = runs_dir / "runs" / path_part("session", run) / "results.json"
            read[run] = read_whole(file) if file.is_file() else _stored(store, run)
        return read[run]

    return look


def _stored(store: Store | None, run: str) -> Results | None:
    try:
        return store.session(run) if store else None
    except StoreError:
        return None
