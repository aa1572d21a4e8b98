"""What MLPerf's checker would refuse of a tree is said by its own rule; nothing else is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.reports.export.submission.layout import DETAIL, Leaf
from pytest_mlperf.reports.export.submission.rules import OURS, RULES, Refusal, refusals
from pytest_mlperf.rounds import ROUNDS, load_round
from tests.cli.submitted import edited, read, seeds, submitted, write

Damage = Callable[[Path, Leaf], object]


def refused(root: Path, round_name: str) -> list[Refusal]:
    return refusals(read(root), load_round(round_name))


def made(root: Path, round_name: str, benchmark: str, *scenarios: str, kind: str) -> Leaf:
    leaves = [submitted(root, round_name, benchmark, one, kind=kind) for one in scenarios]
    return leaves[0]


def run(**values: object) -> Damage:
    return lambda root, leaf: edited(root / leaf.performance / DETAIL, lambda v: v.update(values))


def answers(**values: object) -> Damage:
    return lambda root, leaf: edited(root / leaf.accuracy / DETAIL, lambda v: v.update(values))


def system(**values: object) -> Damage:
    return lambda root, leaf: edited(root / leaf.description, lambda v: v.update(values))


def text(name: str, content: str) -> Damage:
    return lambda root, leaf: write(root / leaf.results / name, content)


def without(name: str) -> Damage:
    def remove(root: Path, leaf: Leaf) -> None:
        path = root / leaf.results / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def implementation(root: Path, leaf: Leaf) -> None:
    edited(root / leaf.implementation("engine"), lambda v: v.update(retraining=""))


def audit(**values: object) -> Damage:
    return lambda root, leaf: edited(
        root / leaf.audit("TEST01") / "performance/run_1" / DETAIL, lambda v: v.update(values)
    )


VOLUMES = ("3d-unet-99", "Offline")
TEXT = ("llama2-70b-99.9", "Server", "Offline")
SCORE = "hash=abc\nAccuracy: mean = "

DAMAGES: list[tuple[str, tuple[str, ...], Damage, str]] = [
    ("PerformanceCheck.missing_check", VOLUMES, without("accuracy/accuracy.txt"), "is missing"),
    ("PerformanceCheck.missing_check", VOLUMES, text("performance/run_1/x", ""), "too many"),
    ("PerformanceCheck.scenarios_check", VOLUMES, system(system_type="edge"), "SingleStream"),
    ("PerformanceCheck.loadgen_errors_check", VOLUMES, run(num_errors=3), "3 errors"),
    (
        "PerformanceCheck.performance_sample_count_check",
        VOLUMES,
        run(effective_performance_sample_count=42),
        "at least 43",
    ),
    ("PerformanceCheck.seeds_check", VOLUMES, run(effective_qsl_rng_seed=1), "qsl_rng_seed is 1"),
    ("PerformanceCheck.seeds_check", VOLUMES, run(**seeds("v6.0")), "in v6.1 it is"),
    ("PerformanceCheck.latency_check", TEXT, run(early_stopping_met=False), "early stopping"),
    (
        "PerformanceCheck.min_query_count_check",
        VOLUMES,
        run(effective_samples_per_query=42),
        "at least 43",
    ),
    (
        "PerformanceCheck.min_duration_check",
        VOLUMES,
        run(effective_min_duration_ms=599_999),
        "at least 600,000",
    ),
    ("PerformanceCheck.network_check", VOLUMES, system(is_network="true"), "network division"),
    (
        "PerformanceCheck.llm_check",
        TEXT,
        run(requested_use_token_latencies=False),
        "use_token_latencies was off",
    ),
    (
        "PerformanceCheck.llm_check",
        TEXT,
        run(**{"result_first_token_99.00_percentile_latency_ns": 2_000_000_000}),
        "p99 of TTFT is 2,000.0 ms; it must be below 2000 ms",
    ),
    (
        "PerformanceCheck.inferred_check",
        VOLUMES,
        run(effective_scenario="SingleStream"),
        "the log is of SingleStream, in a folder of Offline",
    ),
    (OURS, VOLUMES, run(result_validity="INVALID"), "LoadGen calls the run INVALID"),
    (
        "AccuracyCheck.accuracy_result_check",
        VOLUMES,
        text("accuracy/accuracy.txt", "Accuracy: mean = 0.9\n"),
        "no line hash=",
    ),
    (
        "AccuracyCheck.accuracy_result_check",
        VOLUMES,
        text("accuracy/accuracy.txt", SCORE + "0.85\n"),
        "dice is 0.85; at least 0.853083",
    ),
    (
        "AccuracyCheck.accuracy_result_check",
        VOLUMES,
        text("accuracy/accuracy.txt", "hash=abc\n"),
        "has no DICE",
    ),
    (
        "AccuracyCheck.accuracy_json_check",
        VOLUMES,
        text("accuracy/mlperf_log_accuracy.json", "x" * 20_000),
        "it is not cut",
    ),
    (
        "AccuracyCheck.dataset_check",
        VOLUMES,
        answers(qsl_reported_total_count=42),
        "has 42 samples; the data set has 43",
    ),
    ("SystemCheck.required_fields_check", VOLUMES, system(cooling=""), "empty: cooling"),
    ("SystemCheck.required_fields_check", VOLUMES, system(cooling="FILL IN"), "not filled in"),
    ("SystemCheck.submitter_check", VOLUMES, system(submitter="Emca"), "'Emca', in a folder"),
    ("SystemCheck.division_check", VOLUMES, system(division="open"), "'open', in a folder"),
    ("SystemCheck.availability_check", VOLUMES, system(status="soon"), "'soon'; it is one of"),
    ("SystemCheck.system_type_check", VOLUMES, system(system_type="desk"), "'desk'; it is one"),
    ("MeasurementsCheck.required_files_check", VOLUMES, without("user.conf"), "missing or empty"),
    ("MeasurementsCheck.required_fields_check", VOLUMES, implementation, "retraining"),
    (
        "MeasurementsCheck.directory_exist_check",
        VOLUMES,
        lambda root, leaf: shutil.rmtree(root / leaf.source("engine")),
        "src is missing",
    ),
    ("ComplianceCheck.dir_exists_check", VOLUMES, without("TEST01"), "--mlperf-compliance"),
    ("ComplianceCheck.dir_exists_check", VOLUMES, without("TEST01/verify_accuracy.txt"), "missing"),
    ("ComplianceCheck.performance_check", VOLUMES, audit(result_validity="INVALID"), "INVALID"),
    ("ComplianceCheck.performance_check", VOLUMES, audit(effective_qsl_rng_seed=1), "is 1"),
    (
        "ComplianceCheck.accuracy_check",
        VOLUMES,
        text("TEST01/verify_accuracy.txt", "TEST FAIL\n"),
        "nothing shows that their scores do not",
    ),
    (
        "ComplianceCheck.accuracy_check",
        TEXT,
        text("TEST06/verify_accuracy.txt", "EOS check pass: True\n"),
        "Sample length check pass: False",
    ),
    (
        "ComplianceCheck.compliance_performance_check",
        VOLUMES,
        text("TEST01/verify_performance.txt", "TEST FAIL\n"),
        "has no TEST PASS",
    ),
]


@pytest.mark.parametrize(("rule", "result", "damage", "words"), DAMAGES)
def test_each_rule_refuses_what_it_is_for(
    rule: str, result: tuple[str, ...], damage: Damage, words: str, tmp_path: Path
) -> None:
    leaf = made(tmp_path, "v6.1", *result, kind="datacenter")
    assert refused(tmp_path, "v6.1") == []

    damage(tmp_path, leaf)

    by_rule = [one.text for one in refused(tmp_path, "v6.1") if one.rule == rule]
    assert any(words in one for one in by_rule), refused(tmp_path, "v6.1")


def test_videos_and_a_limit_of_server_are_looked_at_too(tmp_path: Path) -> None:
    made(tmp_path, "v6.1", "wan-2.2-t2v-a14b", "Offline", "SingleStream", kind="datacenter")
    by_rule = {one.rule for one in refused(tmp_path, "v6.1")}
    assert by_rule == {"AccuracyCheck.extra_files_check"}

    dense = made(tmp_path / "x", "v6.1", "dlrm-v3", "Server", "Offline", kind="datacenter")
    run(effective_target_latency_ns=90_000_000)(tmp_path / "x", dense)
    (one,) = refused(tmp_path / "x", "v6.1")
    assert one.rule == "PerformanceCheck.latency_check"
    assert one.text == "the latency limit was 90 ms; it is 80 ms"


def test_a_file_of_more_than_50_mib_is_refused(tmp_path: Path) -> None:
    leaf = made(tmp_path, "v6.1", *VOLUMES, kind="datacenter")
    with (tmp_path / leaf.results / "big").open("wb") as file:
        file.truncate(51 * 2**20)

    assert {one.rule for one in refused(tmp_path, "v6.1")} == {"StructureCheck.file_size"}


def test_every_rule_is_shown_to_refuse() -> None:
    shown = {rule for rule, *_ in DAMAGES} | {"AccuracyCheck.extra_files_check"}

    assert shown == {name for name, _ in RULES}


@pytest.mark.parametrize("round_name", ROUNDS)
def test_the_open_division_needs_neither_gate_nor_compliance_nor_scenarios(
    round_name: str, tmp_path: Path
) -> None:
    leaf = submitted(tmp_path, round_name, "3d-unet-99", "Offline", division="open", kind="edge")
    write(tmp_path / leaf.accuracy / "accuracy.txt", SCORE + "0.1\n")

    assert refused(tmp_path, round_name) == []


@pytest.mark.parametrize("round_name", ROUNDS)
def test_each_round_has_its_own_layout(round_name: str, tmp_path: Path) -> None:
    leaf = made(tmp_path, round_name, *VOLUMES, kind="datacenter")

    assert refused(tmp_path, round_name) == []
    flat = round_name in ("v6.0", "v6.1")
    assert (tmp_path / leaf.top / "measurements").is_dir() is not flat
    assert (tmp_path / leaf.top / "compliance").is_dir() is not flat
    assert (tmp_path / leaf.top / ("src" if flat else "code")).is_dir()


def test_the_checker_of_v4_1_is_named_by_its_functions(tmp_path: Path) -> None:
    leaf = made(tmp_path, "v4.1", *VOLUMES, kind="datacenter")
    run(effective_min_duration_ms=0)(tmp_path, leaf)

    (one,) = refused(tmp_path, "v4.1")
    assert one.in_words("v4.1").startswith("check_performance_dir: closed/Acme/results/box/")


def test_a_damaged_log_and_an_empty_tree_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(MlperfError, match="no results are in this tree"):
        refused(tmp_path, "v6.1")
    leaf = made(tmp_path, "v6.1", *VOLUMES, kind="datacenter")
    path = tmp_path / leaf.performance / DETAIL
    path.write_text(path.read_text("utf-8")[:200], "utf-8")
    with pytest.raises(MlperfError, match=r"is cut|no log entry"):
        refused(tmp_path, "v6.1")
