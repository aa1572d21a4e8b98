"""Import MLPerf submissions and folders of LoadGen logs, as table rows and as a session."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.commands.imports._sessions import name_of, session, write_session
from pytest_mlperf.addons.official.commands.published import document
from pytest_mlperf.addons.official.published_table import table_of
from pytest_mlperf.addons.official.results import (
    RecordedResult,
    ResultPlace,
    Scenarios,
    count_of,
    queries_of,
    read_result,
    result_folders,
)
from pytest_mlperf.bench.foreign_runs import safe_case
from pytest_mlperf.cli.output import as_typed, show
from pytest_mlperf.extension import (
    Case,
    CaseResult,
    Run,
    Scenario,
    Subject,
    json_text,
    judge_runs,
    plural,
    sentence,
    write_whole,
)
from pytest_mlperf.hardware.specs import class_of
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.run.logs import Detail

LOGS, SUBMISSION = "LoadGen", "MLPerf submission"

MAX_LISTED_FOLDERS = 20
SUMMARY_NAME = "result_summary.json"

UNKNOWN_PRECISION = "unsaid"
CASE_FIELDS = ("workload", "precision", "accelerator")


def run(parsed: argparse.Namespace) -> int:
    """Import result folders as table rows and a session; return 1 if any is refused or INVALID."""
    if parsed.started:
        raise MlperfError("--started is for import endpoints: LoadGen's logs say when they began")
    places = list(dict.fromkeys(p for folder in parsed.sessions for p in result_folders(folder)))
    if not places:
        named = ", ".join(map(str, parsed.sessions))
        raise MlperfError(f"{named}: contains no results and no LoadGen logs")
    results, refused = _read(places, parsed)
    if not results:
        more = f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else ""
        raise MlperfError(f"{_from_here(refused[0])}{more}")
    checked_results = [(result, result.logs[0].reasons) for result in results]
    valid = [result for result, reasons in checked_results if not reasons]
    invalid = [(one.place.folder, reasons) for one, reasons in checked_results if reasons]
    lines = [
        *_counted(results),
        *_listed("refused", refused),
        *_listed(
            "INVALID",
            [
                f"{folder}: {'; '.join(sentence(reason.text) for reason in reasons)}"
                for folder, reasons in invalid
            ],
        ),
        *_listed("note", [note for one in results for note in one.notes]),
    ]
    cases, left_out = _cases(results, parsed)
    if parsed.rows:
        lines += _write_rows(parsed.rows, valid)
    show([*lines, *left_out, *_write_session(cases, results, parsed)])
    return int(bool(refused) or len(valid) < len(results))


def _read(
    places: Iterable[ResultPlace], parsed: argparse.Namespace
) -> tuple[list[RecordedResult], list[str]]:
    results, refused = [], []
    unnamed = [option for option in CASE_FIELDS if not getattr(parsed, option)]
    for location in places:
        if unnamed and not location.division:
            options = ", ".join(f"--{option}" for option in unnamed)
            refused.append(f"{location.folder}: LoadGen's logs do not contain these: add {options}")
            continue
        if (location.folder / "performance" / SUMMARY_NAME).exists():
            how = as_typed("import", ["endpoints", location.folder], {})
            refused.append(
                f"{location.folder}: has results of MLCommons' endpoints client; import them: {how}"
            )
            continue
        try:
            results.append(read_result(location, parsed.workload))
        except MlperfError as error:
            refused.append(str(error))
    return results, refused


def _counted(results: Sequence[RecordedResult]) -> Iterator[str]:
    for name, count in Counter(one.row.round for one in results).items():
        rows = [one.row for one in results if one.row.round == name]
        submitters = {row.submitter for row in rows if row.submitter}
        systems = {(row.submitter, row.system) for row in rows if row.system}
        power = sum(row.power is not None for row in rows)
        inferred = sum(row.inferred for row in rows)
        parts = (
            plural(count, "result") + (f" of {name}" if name else " of an unknown round"),
            plural(len(submitters), "submitter") if submitters else "",
            plural(len(systems), "system") if systems else "",
            f"{power:,} with power" if power else "",
            f"{inferred:,} derived from another scenario's run" if inferred else "",
        )
        yield ", ".join(filter(None, parts))


def _listed(label: str, texts: Sequence[str]) -> Iterator[str]:
    yield from (f"{label}: {_from_here(text)}" for text in texts[:MAX_LISTED_FOLDERS])
    if len(texts) > MAX_LISTED_FOLDERS:
        yield f"{label}: {len(texts) - MAX_LISTED_FOLDERS:,} more"


def _from_here(text: str) -> str:
    return text.replace(f"{Path.cwd()}/", "")


def _write_rows(path: Path, valid: Sequence[RecordedResult]) -> list[str]:
    rows = []
    for result in valid:
        location, notes = result.place, [_from_here(note) for note in result.notes]
        below = location.folder.relative_to(location.root) if location.division else location.folder
        about = {"folder": str(below)} | ({"notes": notes} if notes else {})
        rows.append(document(result.row) | about)
    write_whole(path, json_text(table_of(rows)) + "\n")
    name = relative(path)
    how = as_typed("published", [], {"--from": name})
    return [f"wrote {plural(len(rows), 'row')}: {name}", f"list them: {how}"]


def _cases(
    results: Sequence[RecordedResult], parsed: argparse.Namespace
) -> tuple[list[CaseResult], list[str]]:
    groups: dict[tuple[Case, str], list[tuple[RecordedResult, list[Run]]]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    incomplete = []
    for result in results:
        if result.unmeasured:
            left_out[result.unmeasured] += 1
            continue
        try:
            runs = [_run(result, log) for log in result.logs]
        except MlperfError as error:
            incomplete.append(str(error))
        else:
            groups[_case(result, parsed), json.dumps(_identity(result, parsed))] += [(result, runs)]
    cases = []
    for (case, _), members in groups.items():
        try:
            cases.append(_case_result(case, members, parsed))
        except MlperfError as error:
            incomplete.append(str(error))
    counted = [f"{plural(count, 'result')} {reason}" for reason, count in left_out.items()]
    return cases, [*_listed("not in the session", counted + incomplete)]


def _write_session(
    cases: Sequence[CaseResult], results: Iterable[RecordedResult], parsed: argparse.Namespace
) -> Iterator[str]:
    if not cases:
        return
    every = (str(log.values.get("loadgen_version")) for one in results for log in one.logs)
    versions = dict.fromkeys(sorted(version.split(" ")[0] for version in every))
    name = relative(write_session(session(cases, {"loadgen": ", ".join(versions)}), parsed))
    yield f"wrote a session of {plural(len(cases), 'case')}: {name}"
    yield f"judge it: {as_typed('compare', ['git:HEAD', name], {})}"


def _case(result: RecordedResult, parsed: argparse.Namespace) -> Case:
    row = result.row
    case = Case(
        workload=parsed.workload or name_of(row.used_model or row.model),
        scenario=Scenarios[row.scenario.lower()],
        engine=parsed.engine or name_of(re.split(r"[\s,;:]", result.framework)[0]) or "loadgen",
        precision=parsed.precision or name_of(row.precision) or UNKNOWN_PRECISION,
        accelerator=parsed.accelerator or _accelerator(result),
    )
    return safe_case(case, f"{result.place.folder}: ")


def _accelerator(result: RecordedResult) -> str:
    count, product = result.row.count, result.row.accelerator
    if not count or not product:
        return "cpu"
    word = re.sub(r"[^A-Za-z0-9._]", "_", class_of(product))
    legal = word if re.match("[A-Za-z]", word) else f"accelerator_{word}"
    return legal if count == 1 else f"{count}x{legal}"


def _identity(result: RecordedResult, parsed: argparse.Namespace) -> dict[str, str]:
    system = {"system": parsed.system} if parsed.system else {}
    if not result.place.division:
        gpu = parsed.accelerator.rpartition("x")[2] if parsed.accelerator else ""
        return {"harness": LOGS, "gpu": gpu, **system}
    described = {"submitter": result.row.submitter, "system": result.row.system}
    return {"harness": SUBMISSION, "gpu": result.row.accelerator, **described, **system}


def _case_result(
    case: Case, members: Sequence[tuple[RecordedResult, list[Run]]], parsed: argparse.Namespace
) -> CaseResult:
    first, values = members[0][0], members[0][0].logs[0].values
    runs = sorted(chain.from_iterable(runs for _, runs in members), key=lambda run: run.started)
    facts = {"loadgen": str(values.get("loadgen_version", "")), "framework": first.framework}
    return judge_runs(
        case,
        runs,
        subject=Subject(identity=_identity(first, parsed), fingerprint=facts),
        round_=first.row.round or "none",
        profile="official" if first.official else "quick",
        division="open" if first.row.division in ("open", "network") else "closed",
        target_qps=runs[0].target_qps or None,
    )


def _run(result: RecordedResult, log: Detail) -> Run:
    scenario, (begin_s, end_s) = result.row.scenario, log.window_s
    begun = dt.datetime.fromtimestamp(begin_s, dt.UTC)
    queries, rate = round(queries_of(log)), log.values.get("effective_target_qps")
    samples = queries * count_of(log, "effective_samples_per_query")
    digest = hashlib.sha256(json.dumps(dict(log.values), sort_keys=True).encode()).hexdigest()
    return Run(
        metrics=log.metrics(scenario.of_loadgen),
        within_se={},
        samples=samples,
        queries=samples if scenario == Scenario.OFFLINE else queries,
        duration_s=end_s - begin_s,
        target_qps=float(rate) if isinstance(rate, int | float) and rate > 0 else 0.0,
        session=f"{begun:%Y%m%d-%H%M%S}-{digest[:4]}",
        started=begun.isoformat(timespec="seconds"),
        commit=None,
        folder=str(Path(log.path).parent),
        invalid=log.reasons,
    )
