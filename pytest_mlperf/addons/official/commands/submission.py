"""Run `pytest-mlperf submission`: write results as a folder tree that MLPerf's checker accepts."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.checker import how_to_get, run_checker
from pytest_mlperf.addons.official.submission.form import (
    CALIBRATION,
    DIVISIONS,
    IMPLEMENTATION_FILE,
    MARK,
    README,
    SOURCE_FOLDER,
    SYSTEM_FILE,
    json_file,
    read_form,
)
from pytest_mlperf.addons.official.submission.gather import gather
from pytest_mlperf.addons.official.submission.refusals import refusals
from pytest_mlperf.addons.official.submission.tree import tree_of
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show
from pytest_mlperf.cli.stored_results import results_path
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import nearest, plural, read_results
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.hardware.probe import text_at
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.rounds import ROUNDS, Round, load_round
from pytest_mlperf.stores.atomic import write_folder

HELP = f"""\
init writes a folder to fill in: the description of the system, with what this
machine reports; how the model was prepared; calibration; the code. export
writes the tree: results, measurements and compliance tests, with the logs as
LoadGen wrote them. It writes nothing if a run breaks the rules of performance
runs or the form is not filled in. check runs MLCommons' own checker, from a
checkout of github.com/mlcommons/inference that you name, and shows its errors
and warnings. It exits with 1 if the checker finds errors.

Power is not exported: MLPerf takes it from a wall meter that PTDaemon reads
beside the run. This tool measures nothing that can be submitted as power.

{UNVERIFIED_LABEL}

needs: export: the folders of the runs; check: MLCommons' checker

examples:
  $ pytest-mlperf submission init form --submitter Acme --system acme-8xH200
      a folder to fill in; each blank begins with FILL IN
  $ pytest-mlperf submission export r.json --form form --round v6.1 -o tree
      the tree, or the reasons why it is not written
  $ pytest-mlperf submission check tree --round v6.1 --checker inference
      the verdict of MLCommons' checker
"""

ACTIONS = ("init", "export", "check")

TEMPLATES = files("pytest_mlperf.addons.official") / "templates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="init: a new folder; export: results files or session ids (default: newest session); "
        "check: a tree",
    )
    add(parser, "--runs-dir")
    parser.add_argument("--round", metavar="ROUND", help="export, check: v4.1 to v6.1")
    parser.add_argument("--form", type=Path, metavar="FOLDER", help="export: folder of init")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="export: a new folder for the tree"
    )
    parser.add_argument(
        "--checker", type=Path, metavar="PATH", help="check: a checkout of mlcommons/inference"
    )
    parser.add_argument(
        "--benchmark",
        action="append",
        default=[],
        metavar="NAME=MLPERF",
        help="export: the MLPerf workload that your workload NAME stands for",
    )
    parser.add_argument(
        "--rehearsal",
        action="store_true",
        help="export: write a tree for practice, also from the quick profile or with errors",
    )
    parser.add_argument("--submitter", metavar="NAME", help="init: who submits")
    parser.add_argument("--system", metavar="ID", help="init: id of the system, used in paths")
    parser.add_argument(
        "--division", choices=DIVISIONS, default=DIVISIONS[0], help="init: division to submit to"
    )
    parser.add_argument(
        "--type",
        choices=("datacenter", "edge", "datacenter,edge"),
        default="datacenter",
        metavar="TYPE",
        help="init: datacenter (the default), edge, or datacenter,edge",
    )
    parser.add_argument(
        "--accelerator", default="cpu", metavar="NAME", help='init: "8xH100" (default: cpu)'
    )


def run(parsed: argparse.Namespace) -> int:
    """Run init, export or check; return 1 if export refuses or the checker finds errors."""
    if parsed.action == "init":
        return _init(parsed)
    name: str | None = parsed.round
    if name not in ROUNDS:
        lack = f"there is no round {name!r}{nearest(name, ROUNDS)}" if name else "name the round"
        raise MlperfError(f"{lack}: --round v6.1")
    rules = load_round(name)
    return _export(parsed, rules) if parsed.action == "export" else _check(parsed, rules)


def _init(parsed: argparse.Namespace) -> int:
    (folder,) = _only(parsed.paths, "folder")
    lacking = [f"--{name}" for name in ("submitter", "system") if getattr(parsed, name) is None]
    if lacking:
        raise MlperfError(f"add {' and '.join(lacking)}, used in the paths of the tree")
    content = {
        SYSTEM_FILE: json_file(_described(parsed)),
        IMPLEMENTATION_FILE: (TEMPLATES / "implementation.json").read_bytes(),
        README: (TEMPLATES / "submission.md").read_bytes(),
        CALIBRATION: (TEMPLATES / "calibration.md").read_bytes(),
        f"{SOURCE_FOLDER}/README.md": b"The code that was measured: engines, suites, scripts.\n",
    }
    write_folder(folder, content)
    blanks = list(read_form(folder).blanks())
    show(
        [
            f"wrote {relative(folder)}: {plural(len(blanks), 'blank')} to fill in, each begins "
            f"with {MARK}",
            "then: pytest-mlperf submission export RESULTS --round ROUND -o TREE --form "
            f"{relative(folder)}",
        ]
    )
    return 0


def _described(parsed: argparse.Namespace) -> dict[str, object]:
    machine = detect(gpus=split(parsed.accelerator)[1] != "cpu")
    if not machine.has(parsed.accelerator):
        raise MlperfError(f"this machine has no {parsed.accelerator}; it has {machine.seen}")
    facts = {
        "division": parsed.division,
        "submitter": parsed.submitter,
        "system_type": parsed.type,
        **described(machine, parsed.accelerator),
    }
    blanks = json.loads((TEMPLATES / SYSTEM_FILE).read_text("utf-8"))
    return {"id": parsed.system, **{key: facts.get(key, blank) for key, blank in blanks.items()}}


def _export(parsed: argparse.Namespace, rules: Round) -> int:
    if parsed.form is None or parsed.output is None:
        raise MlperfError(
            "add --form with the folder from submission init, and -o with a new folder"
        )
    if os.path.lexists(parsed.output):
        raise MlperfError(f"{parsed.output} exists; nothing was written: name a new folder")
    form = read_form(parsed.form)
    files = [results_path(text, parsed.runs_dir) for text in parsed.paths or [None]]
    entries = gather(
        [(path, read_results(path)) for path in files],
        rules,
        _benchmarks(parsed.benchmark),
        rehearsal=parsed.rehearsal,
    )
    if form.division == "closed":
        for entry in entries:
            if entry.result.division != "closed":
                raise MlperfError(
                    "a suite of the open division is in these results, and the form says closed: "
                    'set "division" in system.json to "open"'
                )
            if entry.mapped and not parsed.rehearsal:
                raise MlperfError(
                    f"{entry.mapped} is not one of MLPerf's workloads: it can only be submitted "
                    'to the open division ("division" in system.json)'
                )
    tree = tree_of(entries, form, rules, rehearsal=parsed.rehearsal)
    refused = [f"not allowed: {one}" for one in refusals(entries, form, tree, rules)]
    if refused and not parsed.rehearsal:
        show([*refused, "nothing was written; for practice, use --rehearsal", UNVERIFIED_LABEL])
        return 1
    write_folder(parsed.output, tree)
    title = plural(len(entries), "result")
    show(
        [
            *refused,
            f"wrote {relative(parsed.output)}: {title}, {plural(len(tree), 'file')}",
            *(["a rehearsal, not a submission"] * parsed.rehearsal),
            f"check it: pytest-mlperf submission check {relative(parsed.output)} --round "
            f"{rules.name} --checker PATH",
            UNVERIFIED_LABEL,
        ]
    )
    return 0


def _benchmarks(texts: list[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, sign, benchmark in pairs:
        if not (name and sign and benchmark):
            raise MlperfError(
                f"--benchmark {name}{sign}{benchmark} is not NAME=WORKLOAD, such as mine=resnet50"
            )
    return {name: benchmark for name, _, benchmark in pairs}


def _check(parsed: argparse.Namespace, rules: Round) -> int:
    (tree,) = _only(parsed.paths, "tree")
    if parsed.checker is None:
        raise MlperfError(f"check needs MLCommons' own checker: {how_to_get(rules.name)}")
    if not any(tree.glob("*/*/results/*")):
        raise MlperfError(
            f"{tree} has no results (closed/SUBMITTER/results/SYSTEM/...); name the folder that "
            "submission export wrote"
        )
    code, lines = run_checker(tree, rules.name, parsed.checker)
    show([UNVERIFIED_LABEL, *lines])
    return code


def _only(paths: list[str], title: str) -> list[Path]:
    if len(paths) != 1:
        raise MlperfError(f"name exactly one {title}; you named {len(paths)}")
    return [Path(paths[0])]


def described(machine: Machine, accelerator: str, root: Path = Path("/")) -> dict[str, str]:
    """Return the fields of MLPerf's system description that can be detected here."""
    cpus = text_at(root / "proc/cpuinfo")
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text_at(root / "proc/meminfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', text_at(root / "etc/os-release"), re.MULTILINE)
    sockets = set(re.findall(r"^physical id\s*:\s*(\d+)", cpus, re.MULTILINE))
    cores = re.search(r"^cpu cores\s*:\s*(\d+)", cpus, re.MULTILINE)
    kernel = machine.host.get("kernel", "")
    facts = {
        "number_of_nodes": "1",
        "host_processor_model_name": str(machine.cpu.get("cpu") or ""),
        "host_processors_per_node": str(len(sockets) or ""),
        "host_processor_core_count": cores[1] if cores else str(os.cpu_count() or ""),
        "host_memory_capacity": f"{int(memory[1]) * 1024 / 2**30:.0f} GiB" if memory else "",
        "operating_system": ", ".join(
            filter(None, (system[1] if system else "", kernel and f"Linux {kernel}"))
        ),
        **_accelerator(machine, accelerator),
    }
    python = machine.host.get("python", "")
    driver = machine.surroundings(accelerator).get("driver", "")
    stack = ", ".join(filter(None, (python, driver and f"driver {driver}")))
    return {key: text for key, text in {**facts, "other_software_stack": stack}.items() if text}


def _accelerator(machine: Machine, accelerator: str) -> Mapping[str, str]:
    if accelerator == "cpu":
        keys = ("model_name", "memory_capacity", "memory_configuration", "host_interconnect")
        none = {f"accelerator_{key}": "N/A" for key in (*keys, "interconnect")}
        return {"accelerators_per_node": "0", **none}
    identity = machine.identity(accelerator)
    memory = identity.get("memory_gib")
    return {
        "accelerators_per_node": str(split(accelerator)[0]),
        "accelerator_model_name": str(identity.get("gpu") or ""),
        "accelerator_memory_capacity": f"{memory:g} GiB" if isinstance(memory, int | float) else "",
        "accelerator_interconnect": str(identity.get("topology") or ""),
    }
