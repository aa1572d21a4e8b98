"""What MLPerf's submission checker would refuse of a tree, by the names of its own rules.

Beside its rules stands one of ours: a run that LoadGen calls INVALID is refused, which the checker
of v6.1 lets pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.reports.export.submission.form import LARGEST, MARK
from pytest_mlperf.reports.export.submission.layout import (
    ANSWERS,
    DETAIL,
    SCORES,
    SUMMARY,
    Leaf,
)
from pytest_mlperf.rounds import Round, RoundScenario, RoundWorkload
from pytest_mlperf.rounds.accuracy_txt import UNGATED, read_score
from pytest_mlperf.rounds.compliance import TESTS, other_seeds
from pytest_mlperf.run.logs import Detail, parse_detail

Files = Mapping[str, bytes | Path]

LONGEST_ANSWERS = 10 * 1024
"""Bytes of a log of answers that was cut."""

ENOUGH_MS = 600_000

OURS = "pytest-mlperf"
"""Stands in the place of a rule that the checker has not."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One thing that would be refused.

    Attributes:
        rule: The checker's name of its rule.
        place: What it is of: a scenario's folder, or a file.
    """

    rule: str
    place: str
    text: str

    def in_words(self, round_name: str) -> str:
        """Return a line for people."""
        named = self.rule
        if round_name == "v4.1" and named != OURS:
            named = FUNCTIONS.get(named) or FUNCTIONS[named.partition(".")[0]]
        return f"{named}: {self.place}: {self.text}"


FUNCTIONS = {
    "PerformanceCheck.scenarios_check": "check_results_dir",
    "PerformanceCheck.missing_check": "check_results_dir",
    "PerformanceCheck.loadgen_errors_check": "find_error_in_detail_log",
    "PerformanceCheck.llm_check": "extra_check_llm",
    "SystemCheck.system_type_check": "check_results_dir",
    "PerformanceCheck": "check_performance_dir",
    "AccuracyCheck": "check_accuracy_dir",
    "SystemCheck": "check_system_desc_id",
    "MeasurementsCheck": "check_measurement_dir",
    "ComplianceCheck": "check_compliance_dir",
    "StructureCheck": "check_results_dir",
}
"""The functions of the checker of v4.1, by the rules of later ones or their classes."""

TEXTS = (
    "division",
    "submitter",
    "status",
    "system_name",
    "number_of_nodes",
    "host_processor_model_name",
    "host_processors_per_node",
    "host_processor_core_count",
    "host_memory_capacity",
    "host_memory_configuration",
    "host_storage_capacity",
    "host_storage_type",
    "host_networking",
    "host_network_card_count",
    "host_networking_topology",
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_memory_capacity",
    "accelerator_host_interconnect",
    "accelerator_memory_configuration",
    "accelerator_interconnect",
    "cooling",
    "framework",
    "operating_system",
    "system_type",
    "other_software_stack",
)
"""Keys of a system's description that must say something."""

MAY_BE_EMPTY = (
    "system_type_detail",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "accelerator_frequency",
    "accelerator_interconnect_topology",
    "accelerator_on-chip_memories",
    "hw_notes",
    "sw_notes",
)

PREPARED = (
    "input_data_types",
    "retraining",
    "starting_weights_filename",
    "weight_data_types",
    "weight_transformations",
)
"""Keys of measurements.json that must say something."""

STATES = ("available", "preview", "rdi")
SYSTEM_TYPES = ("datacenter", "edge", "datacenter,edge", "edge,datacenter")


class Tree:
    """The files of a submission, and its scenarios."""

    def __init__(self, files: Files, rules: Round) -> None:
        """Find the scenarios; nothing is read."""
        self.files = files
        self.rules = rules
        self.tops = sorted(
            {"/".join(name.split("/")[:2]) for name in files if _is_in_division(name)}
        )

    def leaves(self) -> Iterator[Leaf]:
        """Yield each scenario of each benchmark."""
        there: dict[tuple[str, ...], None] = {}
        for name in self.files:
            parts = name.split("/")
            if _is_in_division(name) and parts[2] == "results" and len(parts) > 6:
                there["/".join(parts[:2]), *parts[3:6]] = None
        for top, system, benchmark, scenario in there:
            yield Leaf(
                round=self.rules.name,
                top=top,
                system=system,
                benchmark=benchmark,
                scenario=scenario,
            )

    def text(self, name: str) -> str | None:
        """Return the content of a file; None: it is not there."""
        source = self.files.get(name)
        if source is None:
            return None
        content = source if isinstance(source, bytes) else source.read_bytes()
        return content.decode("utf-8", "replace")

    def table(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file; None: there is none."""
        text = self.text(name)
        try:
            content = json.loads(text) if text is not None else None
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None: it is not there."""
        source = self.files.get(name)
        if source is None:
            return None
        return len(source) if isinstance(source, bytes) else source.stat().st_size

    def detail(self, name: str) -> Detail | None:
        """Return LoadGen's log; None: it is not there."""
        source = self.files.get(name)
        return parse_detail(source) if isinstance(source, Path) else None

    def below(self, folder: str) -> set[str]:
        """Return the names of the files in a folder."""
        start = f"{folder}/"
        return {n[len(start) :] for n in self.files if n.startswith(start)}

    def mapping(self, top: str) -> Mapping[str, Any]:
        """Return MLPerf's benchmarks by the names that an open submission gives its own."""
        return self.table(f"{top}/model_mapping.json") or {}


def _is_in_division(name: str) -> bool:
    return name.split("/", maxsplit=1)[0] in {"closed", "open"} and name.count("/") >= 2


class Checked:
    """One scenario under the rules, with what its logs say."""

    def __init__(self, tree: Tree, leaf: Leaf) -> None:
        """Read nothing yet."""
        self.tree, self.leaf = tree, leaf
        named = leaf.benchmark
        if not self.closed:
            named = str(tree.mapping(leaf.top).get(named, named))
        self.benchmark = named

    @property
    def closed(self) -> bool:
        """Everything must be as MLPerf says."""
        return self.leaf.top.startswith("closed/")

    @cached_property
    def workload(self) -> RoundWorkload | None:
        """The round's workload."""
        for workload in self.tree.rules.workloads.values():
            if workload.interactive_checker and self.benchmark in workload.checker_names:
                return workload
        return self.tree.rules.find(self.benchmark)

    @property
    def constants(self) -> RoundScenario | None:
        """The round's constants of the scenario."""
        return self.workload.scenarios.get(self.leaf.scenario) if self.workload else None

    @cached_property
    def run(self) -> Detail | None:
        """The log of the performance run."""
        return self.tree.detail(f"{self.leaf.performance}/{DETAIL}")

    @cached_property
    def answers(self) -> Detail | None:
        """The log of the accuracy run."""
        return self.tree.detail(f"{self.leaf.accuracy}/{DETAIL}")

    @cached_property
    def system(self) -> Mapping[str, Any]:
        """The description of the system."""
        return self.tree.table(self.leaf.description) or {}


Rule = Callable[[Checked], Iterator[str]]


def refusals(files: Files, rules: Round) -> list[Refusal]:
    """Return all that would be refused of a tree; an MlperfError: it is none, or a log is damaged.

    Args:
        files: By relative path their content, or where it lies.
    """
    tree = Tree(files, rules)
    leaves = list(tree.leaves())
    if not leaves:
        raise MlperfError("no results are in this tree: closed/SUBMITTER/results/SYSTEM/...")
    refused = [
        Refusal(
            rule="StructureCheck.file_size",
            place=name,
            text=f"{(size or 0) >> 20} MiB; files have {LARGEST >> 20} MiB at most",
        )
        for name in files
        if (size := tree.size(name)) is not None and size > LARGEST
    ]
    for leaf in leaves:
        checked = Checked(tree, leaf)
        for name, rule in RULES:
            place = leaf.description if name.startswith("SystemCheck") else leaf.results
            refused += [Refusal(rule=name, place=place, text=text) for text in rule(checked)]
    return list(dict.fromkeys(refused))


# --- the performance run -------------------------------------------------------------------


def _missing(checked: Checked) -> Iterator[str]:
    if checked.workload is None:
        yield f"{checked.benchmark} is no benchmark of {checked.tree.rules.name}"
    for folder, names in (
        (checked.leaf.performance, (DETAIL, SUMMARY)),
        (checked.leaf.accuracy, (DETAIL, SUMMARY, SCORES, ANSWERS)),
    ):
        for name in names:
            if f"{folder}/{name}" not in checked.tree.files:
                yield f"{folder}/{name} is missing"
    beyond = checked.tree.below(checked.leaf.performance) - {DETAIL, SUMMARY, ANSWERS}
    for name in sorted(beyond):
        yield f"{checked.leaf.performance}/{name} is one file too many"


def _validity(checked: Checked) -> Iterator[str]:
    if checked.run and not checked.run.valid:
        reasons = "; ".join(checked.run.invalid_reasons) or "LoadGen gives no reason"
        yield f"LoadGen calls the run INVALID: {reasons}"


def _errors(checked: Checked) -> Iterator[str]:
    for title, detail in (("performance", checked.run), ("accuracy", checked.answers)):
        if detail and detail.num_errors:
            first = detail.errors[0] if detail.errors else "not named"
            yield f"LoadGen logged {detail.num_errors} errors in the {title} run, first: {first}"


def _seeds(checked: Checked) -> Iterator[str]:
    if checked.run:
        yield from _other_seeds(checked.run, checked.tree.rules, "")


def _other_seeds(detail: Detail, rules: Round, test: str) -> Iterator[str]:
    other = other_seeds(rules.name) if test == "TEST05" else None
    expected = {
        "qsl_rng_seed": other.qsl if other else rules.qsl_seed,
        "sample_index_rng_seed": other.sample_index if other else rules.sample_index_seed,
        "schedule_rng_seed": other.schedule if other else rules.schedule_seed,
    }
    for name, seed in expected.items():
        value = detail.values.get(f"effective_{name}")
        if value != seed:
            yield f"{name} is {value}; in {rules.name} it is {seed}"


def _samples_in_memory(checked: Checked) -> Iterator[str]:
    if checked.run and checked.workload:
        yield from _at_least(
            checked.run, "effective_performance_sample_count", checked.workload.performance_samples
        )


def _at_least(detail: Detail, key: str, least: int) -> Iterator[str]:
    value = detail.values.get(key)
    if not isinstance(value, int | float) or value < least:
        yield f"{key.removeprefix('effective_')} is {value}; at least {least:,} are needed"


def _latency(checked: Checked) -> Iterator[str]:
    run, constants = checked.run, checked.constants
    if run is None or constants is None:
        return
    loadgen = run.values.get("effective_scenario")
    if loadgen != "Offline" and not run.early_stopping_met:
        yield "LoadGen's early stopping was not met"
    limit_ms = constants.latency_limit_ms
    if loadgen == "Server" and limit_ms is not None:
        value = run.values.get("effective_target_latency_ns")
        if not isinstance(value, int | float) or value > limit_ms * 1e6:
            shown = f"{value / 1e6:g}" if isinstance(value, int | float) else value
            yield f"the latency limit was {shown} ms; it is {limit_ms:g} ms"


def _queries(checked: Checked) -> Iterator[str]:
    run, constants = checked.run, checked.constants
    if run is None or constants is None or run.values.get("effective_scenario") != "Offline":
        return
    if checked.closed or checked.tree.rules.name == "v4.1":
        yield from _at_least(run, "effective_samples_per_query", constants.min_query_count)


def _duration(checked: Checked) -> Iterator[str]:
    constants = checked.constants
    if checked.run and constants:
        least = min(ENOUGH_MS, constants.min_duration_ms)
        yield from _at_least(checked.run, "effective_min_duration_ms", least)


def _tokens(checked: Checked) -> Iterator[str]:
    run, constants = checked.run, checked.constants
    if run is None or constants is None or not (checked.workload and checked.workload.tokens):
        return
    if not run.values.get("requested_use_token_latencies"):
        yield "use_token_latencies was off; language models need it"
    for title, limit_ms, timed in (
        ("TTFT", constants.ttft_limit_ms, "ttft"),
        ("TPOT", constants.tpot_limit_ms, "tpot"),
    ):
        if limit_ms is not None:
            value = run.percentile_ns(timed, 0.99)  # type: ignore[arg-type]
            if value is None or value >= limit_ms * 1e6:
                shown = "not known" if value is None else f"{value / 1e6:,.1f} ms"
                yield f"p99 of {title} is {shown}; it must be below {limit_ms:g} ms"


def _scenario(checked: Checked) -> Iterator[str]:
    if checked.run is None:
        return
    logged = checked.run.values.get("effective_scenario")
    expected = "Server" if checked.leaf.scenario == "Interactive" else checked.leaf.scenario
    if logged != expected:
        yield f"the log is of {logged}, in a folder of {checked.leaf.scenario}"


def _scenarios(checked: Checked) -> Iterator[str]:
    workload = checked.workload
    if workload is None or not checked.closed:
        return
    there = {
        leaf.scenario
        for leaf in checked.tree.leaves()
        if (leaf.top, leaf.system, leaf.benchmark)
        == (checked.leaf.top, checked.leaf.system, checked.leaf.benchmark)
    }
    for kind in str(checked.system.get("system_type", "")).split(","):
        systems = workload.systems.get(kind)
        if systems is None:
            yield f"{checked.benchmark} is no benchmark of {kind or 'such'} systems"
            continue
        for name in systems.required:
            if name not in there:
                yield f"{kind} systems need {name} too"
        if systems.one_optional and not there.intersection(systems.optional):
            yield f"{kind} systems need one of {' and '.join(systems.optional)} too"
        if checked.leaf.scenario not in (*systems.required, *systems.optional):
            yield f"{kind} systems have no {checked.leaf.scenario}"


def _network(checked: Checked) -> Iterator[str]:
    if checked.closed and str(checked.system.get("is_network", "")).lower() == "true":
        yield "is_network is true, which is the network division's"


# --- the accuracy run ----------------------------------------------------------------------


def _scores(checked: Checked) -> Iterator[str]:
    text, workload = checked.tree.text(f"{checked.leaf.accuracy}/{SCORES}"), checked.workload
    if text is None or workload is None or checked.constants is None:
        return
    if not any(line.startswith("hash=") for line in text.splitlines()):
        yield f"{SCORES} has no line hash=..., of the whole log of answers"
    if not checked.closed:
        return
    for name, metric in {**workload.metrics, **checked.constants.metrics}.items():
        if metric.checker == UNGATED:
            continue
        score = read_score(text, metric)
        low, high = metric.bounds(workload.targets[0])
        if score is None:
            yield f"{SCORES} has no {metric.checker}"
        elif low is not None and score < low:
            yield f"{name} is {score:g}; at least {low:g} are needed"
        elif high is not None and score > high:
            yield f"{name} is {score:g}; {high:g} at most are allowed"


def _answers(checked: Checked) -> Iterator[str]:
    size = checked.tree.size(f"{checked.leaf.accuracy}/{ANSWERS}")
    if size is not None and size > LONGEST_ANSWERS:
        yield f"{ANSWERS} has {size:,} bytes: it is not cut"


def _whole(checked: Checked) -> Iterator[str]:
    workload, constants = checked.workload, checked.constants
    if checked.answers is None or workload is None or constants is None:
        return
    values = checked.answers.values
    count = values.get("effective_accuracy_sample_count") or values.get("qsl_reported_total_count")
    whole = constants.accuracy_samples or workload.accuracy_samples or workload.dataset_samples
    if count != whole:
        yield f"the accuracy run has {count} samples; the data set has {whole:,}"


EXTRA = {
    ("stable-diffusion-xl", "v5.0"): "images",
    ("stable-diffusion-xl", "v5.1"): "images",
    ("stable-diffusion-xl", "v6.0"): "images",
    ("wan-2.2-t2v-a14b", "v6.0"): "videos",
    ("wan-2.2-t2v-a14b", "v6.1"): "videos",
}
"""What of ten named samples must lie beside the scores."""


def _extra(checked: Checked) -> Iterator[str]:
    folder = EXTRA.get((checked.benchmark, checked.tree.rules.name))
    if folder and not checked.tree.below(f"{checked.leaf.accuracy}/{folder}"):
        yield f"accuracy/{folder} with ten named samples and captions.txt is missing; add it"


# --- what stands beside --------------------------------------------------------------------


def _fields(checked: Checked) -> Iterator[str]:
    if not checked.system:
        yield f"{checked.leaf.description} is missing, or no JSON object"
        return
    keys = (*TEXTS, *MAY_BE_EMPTY)
    yield from _listed([key for key in keys if key not in checked.system], "missing")
    there = [key for key in keys if key in checked.system]
    blank = [key for key in there if str(checked.system[key]).startswith(MARK)]
    yield from _listed(blank, "not filled in")
    yield from _listed([key for key in there if key in TEXTS and not checked.system[key]], "empty")


def _listed(keys: Sequence[str], lack: str) -> Iterator[str]:
    if keys:
        yield f"{lack}: {', '.join(keys)}"


def _submitter(checked: Checked) -> Iterator[str]:
    named, folder = checked.system.get("submitter"), checked.leaf.top.split("/")[1]
    if str(named).lower() != folder.lower():
        yield f"submitter is {named!r}, in a folder of {folder!r}"


def _division(checked: Checked) -> Iterator[str]:
    named, folder = checked.system.get("division"), checked.leaf.top.split("/")[0]
    if str(named).lower() != folder:
        yield f"division is {named!r}, in a folder of {folder!r}"


def _state(checked: Checked) -> Iterator[str]:
    state = str(checked.system.get("status", "")).lower()
    if state not in STATES:
        yield f"status is {state!r}; it is one of {', '.join(STATES)}"


def _system_type(checked: Checked) -> Iterator[str]:
    kind = checked.system.get("system_type")
    if kind not in SYSTEM_TYPES:
        yield f"system_type is {kind!r}; it is one of {', '.join(SYSTEM_TYPES)}"


def _measurements(checked: Checked) -> Iterator[str]:
    folder = checked.leaf.measurements
    for name in ("user.conf", "README.md"):
        if not checked.tree.size(f"{folder}/{name}"):
            yield f"{folder}/{name} is missing or empty"
        elif MARK in (checked.tree.text(f"{folder}/{name}") or ""):
            yield f"{folder}/{name} is not filled in"


def _implementation(checked: Checked) -> Iterator[str]:
    folder = checked.leaf.measurements
    start = "measurements" if checked.leaf.flat else checked.leaf.system
    names = [n for n in checked.tree.below(folder) if n.startswith(start) and n.endswith(".json")]
    table = checked.tree.table(f"{folder}/{names[0]}") if names else None
    if table is None:
        yield f"{folder} has no {start}*.json"
        return
    values = {key: table.get(key) for key in PREPARED}
    blank = [key for key, value in values.items() if not value or str(value).startswith(MARK)]
    yield from _listed(blank, f"{names[0]}, not filled in")


def _source(checked: Checked) -> Iterator[str]:
    leaf = checked.leaf
    folder = f"{leaf.top}/src" if leaf.flat else f"{leaf.top}/code/{leaf.benchmark}"
    if not checked.tree.below(folder):
        yield f"{folder} is missing"


# --- compliance ----------------------------------------------------------------------------

PASSED = "TEST PASS"


def audits(checked: Checked) -> tuple[str, ...]:
    """Return the compliance tests that a scenario needs; the open division needs none."""
    return checked.workload.compliance if checked.closed and checked.workload else ()


def _audit_files(checked: Checked) -> Iterator[str]:
    for test in audits(checked):
        folder = checked.leaf.audit(test)
        names = [*TESTS[test].verified]
        if test in {"TEST01", "TEST04", "TEST05"}:
            names += [f"performance/run_1/{DETAIL}", f"performance/run_1/{SUMMARY}"]
        there = checked.tree.below(folder)
        if not there:
            yield f"{test} is missing: measure with --mlperf-compliance"
            continue
        yield from (f"{folder}/{name} is missing" for name in names if name not in there)


def _audit_runs(checked: Checked) -> Iterator[str]:
    for test in audits(checked):
        detail = checked.tree.detail(f"{checked.leaf.audit(test)}/performance/run_1/{DETAIL}")
        if detail is None or test not in {"TEST01", "TEST04", "TEST05"}:
            continue
        if not detail.valid:
            yield f"{test}: LoadGen calls the run INVALID"
        for lack in _other_seeds(detail, checked.tree.rules, test):
            yield f"{test}: {lack}"


def _audit_speed(checked: Checked) -> Iterator[str]:
    yield from _not_passed(checked, "verify_performance.txt")


def _audit_answers(checked: Checked) -> Iterator[str]:
    for test in audits(checked):
        folder = checked.leaf.audit(test)
        text = checked.tree.text(f"{folder}/verify_accuracy.txt")
        if test == "TEST06" and text is not None:
            for line in ("First token check pass", "EOS check pass", "Sample length check pass"):
                passed = ("True", "Skipped") if line.startswith("First") else ("True",)
                if not any(f"{line}: {word}" in text for word in passed):
                    yield f"TEST06: {line}: False"
        elif test == "TEST01" and text is not None and PASSED not in text:
            if f"{folder}/accuracy/baseline_accuracy.txt" not in checked.tree.files:
                yield "TEST01: answers differ, and nothing shows that their scores do not"
        elif test in {"TEST07", "TEST08"} and text is not None and PASSED not in text:
            yield f"{test}: verify_accuracy.txt has no {PASSED}"
    yield from _not_passed(checked, "verify_output_len.txt")


def _not_passed(checked: Checked, name: str) -> Iterator[str]:
    for test in audits(checked):
        text = checked.tree.text(f"{checked.leaf.audit(test)}/{name}")
        if text is not None and PASSED not in text:
            yield f"{test}: {name} has no {PASSED}"


RULES: tuple[tuple[str, Rule], ...] = (
    ("PerformanceCheck.missing_check", _missing),
    (OURS, _validity),
    ("PerformanceCheck.scenarios_check", _scenarios),
    ("PerformanceCheck.loadgen_errors_check", _errors),
    ("PerformanceCheck.performance_sample_count_check", _samples_in_memory),
    ("PerformanceCheck.seeds_check", _seeds),
    ("PerformanceCheck.latency_check", _latency),
    ("PerformanceCheck.min_query_count_check", _queries),
    ("PerformanceCheck.min_duration_check", _duration),
    ("PerformanceCheck.network_check", _network),
    ("PerformanceCheck.llm_check", _tokens),
    ("PerformanceCheck.inferred_check", _scenario),
    ("AccuracyCheck.accuracy_result_check", _scores),
    ("AccuracyCheck.accuracy_json_check", _answers),
    ("AccuracyCheck.dataset_check", _whole),
    ("AccuracyCheck.extra_files_check", _extra),
    ("SystemCheck.required_fields_check", _fields),
    ("SystemCheck.submitter_check", _submitter),
    ("SystemCheck.division_check", _division),
    ("SystemCheck.availability_check", _state),
    ("SystemCheck.system_type_check", _system_type),
    ("MeasurementsCheck.required_files_check", _measurements),
    ("MeasurementsCheck.required_fields_check", _implementation),
    ("MeasurementsCheck.directory_exist_check", _source),
    ("ComplianceCheck.dir_exists_check", _audit_files),
    ("ComplianceCheck.performance_check", _audit_runs),
    ("ComplianceCheck.accuracy_check", _audit_answers),
    ("ComplianceCheck.compliance_performance_check", _audit_speed),
)
"""In the order of the checker, by its classes and their methods."""
