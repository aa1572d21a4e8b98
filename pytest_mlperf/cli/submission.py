"""`pytest-mlperf submission`: results as a tree that MLPerf's submission checker takes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from pytest_mlperf.cli.output import show
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import nearest
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import LABEL
from pytest_mlperf.hardware.description import described
from pytest_mlperf.hardware.machine import detect, split
from pytest_mlperf.reports.export.submission.form import (
    CALIBRATION,
    DIVISIONS,
    IMPLEMENTATION,
    MARK,
    README,
    SOURCE,
    SYSTEM,
    json_file,
    read_form,
)
from pytest_mlperf.reports.export.submission.gather import gather
from pytest_mlperf.reports.export.submission.rules import MAY_BE_EMPTY, TEXTS, Refusal, refusals
from pytest_mlperf.reports.export.submission.tree import tree_of
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.rounds import ROUNDS, Round, load_round
from pytest_mlperf.stores.atomic import write_folder
from pytest_mlperf.stores.results import read_results

HELP = f"""\
results as a tree that MLPerf's submission checker takes

init writes a folder to fill in: the description of the system with what this
machine tells, how the model was prepared, calibration, the code. export makes
the tree of results, measurements and compliance of it: logs as LoadGen wrote
them, answers cut with their hash. It writes nothing where the checker would
refuse something, and says what, by the checker's own rule. check does the same
for a tree that is there.

Power is not exported: MLPerf takes it from a wall meter that PTDaemon reads
beside the run, and from nothing that this tool measures.

{LABEL}

needs: the runs' folders; MLCommons' checker has the last word

examples:
  $ pytest-mlperf submission init form --submitter Acme --system acme-8xH200
      a folder to fill in; what is missing begins with FILL IN
  $ pytest-mlperf submission export r.json --form form --round v6.1 -o tree
      the tree, or what would be refused
  $ pytest-mlperf submission check tree --round v6.1
      what would be refused of a tree
"""

ACTIONS = ("init", "export", "check")

ASKED = {
    "status": "available, preview or rdi",
    "system_name": "as people call it",
    "host_memory_configuration": "24 x 64 GB DDR5-5600",
    "host_storage_capacity": "with its unit",
    "host_storage_type": "NVMe SSD",
    "host_networking": "how it is connected",
    "host_network_card_count": "2x 400 Gbit/s",
    "host_networking_topology": "or N/A",
    "cooling": "air, liquid",
    "framework": "TensorRT-LLM 1.2, vLLM 0.9, ...",
}
"""What a person is asked for, beside the key."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="init: a new folder; export: results files; check: a tree",
    )
    parser.add_argument("--round", metavar="ROUND", help="export, check: v4.1 to v6.1")
    parser.add_argument("--form", type=Path, metavar="FOLDER", help="export: what init made")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="export: a new folder for the tree"
    )
    parser.add_argument(
        "--benchmark",
        action="append",
        default=[],
        metavar="NAME=MLPERF",
        help="export: which of MLPerf's workloads one of your own stands for",
    )
    parser.add_argument(
        "--rehearsal",
        action="store_true",
        help="export: also what would be refused, and runs of the quick profile; no submission",
    )
    parser.add_argument("--submitter", metavar="NAME", help="init: who submits")
    parser.add_argument("--system", metavar="ID", help="init: id of the system, names folders")
    parser.add_argument("--division", choices=DIVISIONS, default=DIVISIONS[0], help="init")
    parser.add_argument(
        "--type",
        choices=("datacenter", "edge", "datacenter,edge"),
        default="datacenter",
        help="init: type of the system",
    )
    parser.add_argument(
        "--accelerator", default="cpu", metavar="NAME", help='init: "8xH100" (default: cpu)'
    )


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked; return 1 where the checker would refuse something."""
    if parsed.action == "init":
        return _init(parsed)
    rules = _round(parsed.round)
    return _export(parsed, rules) if parsed.action == "export" else _check(parsed, rules)


def _round(name: str | None) -> Round:
    if name not in ROUNDS:
        lack = f"there is no round {name!r}{nearest(name, ROUNDS)}" if name else "name the round"
        raise MlperfError(f"{lack}: --round v6.1")
    return load_round(name)


# --- init ----------------------------------------------------------------------------------


def _init(parsed: argparse.Namespace) -> int:
    (folder,) = _only(parsed.paths, "folder")
    lacking = [f"--{name}" for name in ("submitter", "system") if getattr(parsed, name) is None]
    if lacking:
        raise MlperfError(f"{' and '.join(lacking)} missing: both name folders of the tree")
    templates = files("pytest_mlperf.cli") / "templates"
    content = {
        SYSTEM: json_file(_described(parsed)),
        IMPLEMENTATION: (templates / "implementation.json").read_bytes(),
        README: (templates / "submission.md").read_bytes(),
        CALIBRATION: (templates / "calibration.md").read_bytes(),
        f"{SOURCE}/README.md": b"The code that was measured: engines, suites, scripts.\n",
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
    """Return the description of the system, with what is not known marked."""
    machine = detect(gpus=split(parsed.accelerator)[1] != "cpu")
    if not machine.has(parsed.accelerator):
        raise MlperfError(f"{parsed.accelerator} is not here; here: {machine.seen}")
    facts = {
        "division": parsed.division,
        "submitter": parsed.submitter,
        "system_type": parsed.type,
        **described(machine, parsed.accelerator),
    }
    blanks = {key: f"{MARK}: {ASKED[key]}" if key in ASKED else MARK for key in TEXTS}
    return {
        "id": parsed.system,
        **{key: facts.get(key, blanks[key]) for key in TEXTS},
        **{key: facts.get(key, "") for key in MAY_BE_EMPTY},
    }


# --- export and check ----------------------------------------------------------------------


def _export(parsed: argparse.Namespace, rules: Round) -> int:
    if parsed.form is None or parsed.output is None:
        raise MlperfError(
            "name the folder that submission init made with --form, and a new one with -o"
        )
    if os.path.lexists(parsed.output):
        raise MlperfError(f"{parsed.output} exists; nothing was written: name a new folder")
    form = read_form(parsed.form)
    entries = gather(
        [(path, read_results(path)) for path in parsed.paths],
        rules,
        _benchmarks(parsed.benchmark),
        rehearsal=parsed.rehearsal,
    )
    if form.division == "closed":
        for entry in entries:
            _require_closed(entry.result.division, entry.mapped, rehearsal=parsed.rehearsal)
    tree = tree_of(entries, form, rules, rehearsal=parsed.rehearsal)
    refused = refusals(tree, rules)
    lines = _lines(refused, rules)
    if refused and not parsed.rehearsal:
        show([*lines, "nothing was written; --rehearsal writes it all the same", LABEL])
        return 1
    write_folder(parsed.output, tree)
    title = plural(len(entries), "result")
    show(
        [
            *lines,
            f"wrote {relative(parsed.output)}: {title}, {plural(len(tree), 'file')}",
            *(["a rehearsal, and no submission"] * parsed.rehearsal),
            f"check it: {_theirs(rules.name)} --input {relative(parsed.output)} "
            f"--version {rules.name}",
            LABEL,
        ]
    )
    return 0


def _theirs(round_name: str) -> str:
    """Return how MLCommons' checker is called, in tools/submission of its repository."""
    if round_name == "v4.1":
        return "python submission_checker.py"
    return "python -m submission_checker.main"


def _require_closed(division: str, mapped: str, *, rehearsal: bool) -> None:
    if division != "closed":
        raise MlperfError(
            "a suite of the open division is in these results, and the form says closed: set "
            '"division" in system.json to "open"'
        )
    if mapped and not rehearsal:
        raise MlperfError(
            f"{mapped} is none of MLPerf's workloads: only the open division takes it"
        )


def _benchmarks(texts: list[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, sign, benchmark in pairs:
        if not (name and sign and benchmark):
            raise MlperfError(f"--benchmark {name}{sign}{benchmark}: write OWN=resnet50")
    return {name: benchmark for name, _, benchmark in pairs}


def _check(parsed: argparse.Namespace, rules: Round) -> int:
    (folder,) = _only(parsed.paths, "tree")
    if not folder.is_dir():
        raise MlperfError(f"{folder} is no folder")
    tree = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    refused = refusals(tree, rules)
    show(_lines(refused, rules) or [f"{relative(folder)}: nothing that is looked at is refused"])
    show([LABEL])
    return int(bool(refused))


def _lines(refused: list[Refusal], rules: Round) -> list[str]:
    return [f"would be refused: {one.in_words(rules.name)}" for one in refused]


def _only(paths: list[Path], title: str) -> list[Path]:
    if len(paths) != 1:
        raise MlperfError(f"name one {title}, not {len(paths)}")
    return paths
