"""`pytest-mlperf machine`: show the hardware of this machine, or of suites' servers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.bench.case import baseline_file, baselines_root, load_checked
from pytest_mlperf.bench.policy import acceptance_date, unnamed_server_baseline
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show
from pytest_mlperf.cli.suites import find_suites, read_suites
from pytest_mlperf.core.baseline import find_record
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.server.identity import SOURCE
from pytest_mlperf.hardware import probe
from pytest_mlperf.hardware.machine import Machine, detect
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.run.server_hardware import ServerSources
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.plan import Planned, url_of

HELP = """\
Prints the accelerators and the CPU of this machine as JSON. A suite's probe
runs it beside a server: probe = "ssh gpu-box pytest-mlperf machine --json", or,
without pytest-mlperf there, with Python 3.9: probe = "ssh gpu-box python3 -".
With SUITES it prints what their servers run on, and the source.
--adopt moves baselines that name the client in place of the server.

needs: for SUITES, running servers

examples:
  $ pytest-mlperf machine --json
      one line of JSON, as a probe prints it
  $ pytest-mlperf machine suites
      the hardware behind the url of each suite
  $ pytest-mlperf machine --adopt suites
      the server's hardware is that of the baseline: judge against it again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add(parser, "suites", "--json", "--baselines")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="move baselines that name this client's hardware to the server's hardware",
    )
    parser.add_argument("--watch", type=float, metavar="S", help="print GPU energy every S seconds")


def run(parsed: argparse.Namespace) -> int:
    """Print the hardware; with --adopt move baselines to the servers' identities."""
    if not parsed.suites and not parsed.adopt:
        probe.main([] if parsed.watch is None else ["--watch", str(parsed.watch)])
        return 0
    client = detect(gpus=True)
    cases = [one for one in read_suites(find_suites(parsed.suites)) if url_of(one)]
    if not cases:
        raise MlperfError("no case of these suites measures a server: none has the option url")
    for planned in cases:
        machine = server_machine(planned, client)
        identity = machine.identity(planned.case.accelerator)
        text = f"{planned.case.id}: {in_words(planned, machine)}"
        show([json.dumps({"case": planned.case.id, **identity}) if parsed.json else text])
        if parsed.adopt and machine.server:
            root = baselines_root(parsed.baselines, planned.path, planned.suite.division)
            file = baseline_file(root, planned.case, planned.suite.profile)
            show(_adopted(planned, replace(machine, harness=planned.harness), file))
    return 0


def server_machine(planned: Planned, client: Machine) -> Machine:
    """Return the machine under test of a case (server or client); RunError if unknown."""
    sources = ServerSources.of(planned)
    return sources.machine(client) if sources else client


def in_words(planned: Planned, machine: Machine) -> str:
    """Return the text "ADDRESS runs on HARDWARE (SOURCE)" for a case's server."""
    return (
        f"{url_of(planned)} runs on {machine.server.in_words if machine.server else 'this machine'}"
    )


def _adopted(planned: Planned, machine: Machine, file: Path) -> Iterator[str]:
    """Move a baseline that names the client's hardware to the server's record; yield messages."""
    case, old_file, root = planned.case, file, file.parents[3]
    identity = machine.identity(case.accelerator)
    old = load_checked(file, case)
    if old is None and (old := unnamed_server_baseline(root, file)):
        old_file = root.joinpath("cpu", *file.relative_to(root).parts[1:])
    records = [one for one in old.records if SOURCE not in one.identity] if old else []
    if old is None or not records or find_record(old, identity):
        yield "  no baseline to move"
        return
    if len(records) > 1:
        raise BaselineError(
            f"{relative(old_file)}: {len(records)} client machines have a baseline of this server; "
            "delete the records of all but one from the file, then run this again"
        )
    moved = tuple(replace(r, identity=identity) if r is records[0] else r for r in old.records)
    baselines.save(file, replace(old, accelerator=case.accelerator, records=moved))
    if old_file != file:
        old_file.unlink()
    yield f"  moved the baseline of {acceptance_date(records[0])}: {relative(file)}"
