"""Create the files of a submission, by path, according to MLPerf's rules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.submission.form import Form, json_file
from pytest_mlperf.addons.official.submission.gather import Entry
from pytest_mlperf.addons.official.submission.layout import (
    ANSWERS_LOG,
    DETAIL_LOG,
    SCORES_FILE,
    SUMMARY_LOG,
    Leaf,
)
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import Scenario, parse_json
from pytest_mlperf.rounds import Round
from pytest_mlperf.rounds.compliance import TESTS, accuracy_lines

HASHED = ("TEST01", "TEST07", "TEST09")
"""Compliance tests whose log of answers is truncated in a submission, with its hash."""

Files = Mapping[str, bytes | Path]
"""Bytes, or a file to copy, by relative path."""

KEPT_LOG_BYTES = 4096
CUT_MARK = b"\n\n...\n\n"

NOTICE = "REHEARSAL.md"

REHEARSAL = f"""\
# A rehearsal, not a submission

This tree has runs of the quick profile, or workloads that MLPerf does not have. It shows what a
submission contains. MLCommons' checker refuses it. {UNVERIFIED_LABEL}
"""


def tree_of(entries: Sequence[Entry], form: Form, rules: Round, *, rehearsal: bool) -> Files:
    """Return a submission's contents, or logs to copy, by path; a `rehearsal` adds a notice."""
    files: dict[str, bytes | Path] = {}
    for entry in entries:
        named = entry.mapped if entry.mapped and form.division == "open" else entry.benchmark
        leaf = Leaf(
            round=rules.name,
            top=form.top,
            system=form.system,
            benchmark=named,
            scenario=entry.scenario,
        )
        files |= _measured(entry, leaf)
        files |= _measurements(entry, leaf, form)
        for test, folder in entry.audits.items():
            files |= _audited(test, folder, leaf.audit(test))
        engine = entry.result.verdict.case.engine
        files |= {f"{leaf.source(engine)}/{name}": file for name, file in form.source.items()}
        files[leaf.description] = json_file(form.description)
    files[f"{form.top}/documentation/calibration.md"] = form.calibration.encode()
    mapping = {entry.mapped: entry.benchmark for entry in entries if entry.mapped}
    if mapping and form.division == "open":
        files[f"{form.top}/model_mapping.json"] = json_file(mapping)
    if rehearsal:
        files[NOTICE] = REHEARSAL.encode()
    return files


def _measured(entry: Entry, leaf: Leaf) -> Iterator[tuple[str, bytes | Path]]:
    for name in (DETAIL_LOG, SUMMARY_LOG):
        yield f"{leaf.performance}/{name}", entry.run / name
        yield f"{leaf.accuracy}/{name}", entry.answers / name
    metrics = {**entry.rules.metrics, **entry.constants.metrics}
    cut, digest = truncated(entry.answers / ANSWERS_LOG)
    lines = accuracy_lines(entry.accuracy.scores, metrics)
    yield f"{leaf.accuracy}/{ANSWERS_LOG}", cut
    yield f"{leaf.accuracy}/{SCORES_FILE}", _hashed("\n".join(lines), digest)


def _audited(test: str, folder: Path, target: str) -> Iterator[tuple[str, bytes | Path]]:
    for file in sorted(folder.glob("verify_*.txt")):
        yield f"{target}/{file.name}", file
    logs, about = folder / "performance", TESTS[test]
    if about.logs:
        for name in (DETAIL_LOG, SUMMARY_LOG):
            if (logs / name).is_file():
                yield f"{target}/performance/run_1/{name}", logs / name
    if not about.answers or not (logs / ANSWERS_LOG).is_file():
        return
    if test not in HASHED:
        yield f"{target}/accuracy/{ANSWERS_LOG}", logs / ANSWERS_LOG
        return
    cut, digest = truncated(logs / ANSWERS_LOG)
    yield f"{target}/accuracy/{ANSWERS_LOG}", cut
    scored = [folder / name for name in ("baseline_accuracy.txt", "compliance_accuracy.txt")]
    for file in scored:
        if file.is_file():
            yield f"{target}/accuracy/{file.name}", file
    text = scored[1].read_text("utf-8") if scored[1].is_file() else ""
    yield f"{target}/accuracy/{SCORES_FILE}", _hashed(text.strip(), digest)


def _hashed(text: str, digest: str) -> bytes:
    return f"{text}\nhash={digest}\n".lstrip("\n").encode()


def truncated(log: Path) -> tuple[bytes, str]:
    """Return a log cut in the middle as MLPerf requires, and the SHA-256 of the whole log."""
    try:
        with log.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            file.seek(0)
            if size <= 2 * KEPT_LOG_BYTES:
                return file.read(), digest
            start = file.read(KEPT_LOG_BYTES)
            file.seek(size - KEPT_LOG_BYTES)
            return start + CUT_MARK + file.read(KEPT_LOG_BYTES), digest
    except OSError as error:
        raise MlperfError(f"{log} cannot be read: {error.strerror}") from None


def _measurements(entry: Entry, leaf: Leaf, form: Form) -> Iterator[tuple[str, bytes]]:
    chosen, constant = as_conf(_attributes(entry), leaf.scenario)
    case = entry.result.verdict.case
    table = {**form.implementation}
    if not table.get("weight_data_types"):
        table["weight_data_types"] = case.precision
    yield leaf.implementation(case.engine), json_file(table)
    folder = leaf.measurements
    yield f"{folder}/user.conf", _conf("What the submitter chose.", chosen)
    yield f"{folder}/mlperf.conf", _conf("What the round requires.", constant)
    yield f"{folder}/README.md", _readme(entry, form).encode()


def _attributes(entry: Entry) -> Mapping[str, object]:
    file = entry.run / "run.json"
    try:
        return dict(parse_json(file.read_bytes())["settings"]["loadgen"])
    except (OSError, ValueError, KeyError, TypeError):
        raise MlperfError(f"{file} lacks the settings that LoadGen got: measure again") from None


def _ms(value: object) -> object:
    return float(str(value)) / 1e6


def _percent(value: object) -> object:
    return 100 * float(str(value))


SETTING_KEYS = {
    "offline_expected_qps": ("target_qps", str),
    "server_target_qps": ("target_qps", str),
    "single_stream_expected_latency_ns": ("target_latency", _ms),
    "multi_stream_expected_latency_ns": ("target_latency", _ms),
    "server_target_latency_ns": ("target_latency", _ms),
    "server_target_latency_percentile": ("target_latency_percentile", _percent),
    "single_stream_target_latency_percentile": ("target_latency_percentile", _percent),
    "multi_stream_target_latency_percentile": ("target_latency_percentile", _percent),
    "multi_stream_samples_per_query": ("samples_per_query", str),
    "ttft_latency": ("ttft_latency", _ms),
    "tpot_latency": ("tpot_latency", _ms),
    "min_duration_ms": ("min_duration", str),
    "min_query_count": ("min_query_count", str),
    "performance_sample_count_override": ("performance_sample_count_override", str),
    "sample_concatenate_permutation": ("sample_concatenate_permutation", int),
    "use_token_latencies": ("use_token_latencies", int),
}
"""Key and conversion in LoadGen's files, by its setting; seeds are not read from files."""

CHOSEN_KEYS = {
    "offline_expected_qps",
    "server_target_qps",
    "single_stream_expected_latency_ns",
    "multi_stream_expected_latency_ns",
}
"""Settings that a submitter chooses; the round defines the others."""


def as_conf(attributes: Mapping[str, object], scenario: Scenario) -> tuple[list[str], list[str]]:
    """Convert LoadGen's settings to lines of (user.conf, mlperf.conf)."""
    loadgen = scenario.of_loadgen
    chosen: list[str] = []
    constant: list[str] = []
    for name, value in attributes.items():
        if name in SETTING_KEYS:
            key, convert = SETTING_KEYS[name]
            line = f"*.{loadgen}.{key} = {convert(value)}"  # type: ignore[operator]
            (chosen if name in CHOSEN_KEYS else constant).append(line)
    return chosen, constant


def _conf(about: str, lines: Sequence[str]) -> bytes:
    head = (
        f"# {about} Written by pytest-mlperf from what the run recorded: LoadGen",
        "# was given these values as settings, and read no file.",
    )
    return ("\n".join([*head, *lines]) + "\n").encode()


def _readme(entry: Entry, form: Form) -> str:
    verdict, result = entry.result.verdict, entry.result
    facts = verdict.subject.fingerprint if verdict.subject else {}
    rows = [f"- {key}: {value}" for key, value in sorted(facts.items())]
    return "\n".join(
        [
            f"# {entry.benchmark} {entry.scenario}",
            "",
            form.readme.strip(),
            "",
            "## How it was measured",
            "",
            f"Case `{verdict.case.id}` of suite `{result.suite}`, round {result.round}, profile "
            f"{result.profile}; run of {entry.chosen.started} (UTC), the median of "
            f"{len(verdict.runs)}, commit {entry.chosen.commit or 'not known'}.",
            "",
            *rows,
            "",
            UNVERIFIED_LABEL,
            "",
        ]
    )
