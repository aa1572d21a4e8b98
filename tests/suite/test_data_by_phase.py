"""Test the data that a case is timed on and those that it is scored on, if these differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pytest_mlperf.bench.accuracy import file_of
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.reports.terminal.selection import extra_time_lines
from pytest_mlperf.rounds import LOADGEN, RoundWorkload, load_round
from pytest_mlperf.suite.plan import Planned, in_profile, plan_suite
from pytest_mlperf.suite.resolve import dataset_of
from tests.jobs import job_of

GPT_OSS = 'name = "gpt-oss-120b"'
QWEN = 'name = "qwen3-vl-235b-a22b"'
TIMED = 'dataset = { use = "synthetic", samples = 64 }'
SCORED = 'accuracy_dataset = { use = "synthetic", samples = 32, seed = 1 }'
TO_INT32 = ("int64", "int32")
JUDGED = '{ use = "judged", url = "http://127.0.0.1/v1", judge = "tiny" }'
ITS_OWN = 'dataset = { use = "synthetic", samples = 16, seed = 2 }'


def plan(
    folder: Path,
    workload: str,
    *scenarios: tuple[str, str],
    profile: str = "official",
    round_: str = "v6.0",
) -> list[Planned]:
    """Return the cases of a suite; scenarios are names with what else their tables have."""
    tables = "\n".join(
        f'[[scenarios]]\nname = "{name}"\n{more_of_it}' for name, more_of_it in scenarios
    )
    file = folder / "s.mlperf.toml"
    file.write_text(
        f'schema = 1\nround = "{round_}"\nprofile = "{profile}"\n[workload]\n{workload}\n'
        f'[[engines]]\nuse = "null"\n{tables}\n',
        "utf-8",
    )
    return plan_suite(file)


def test_a_case_is_scored_on_its_timed_data_unless_the_suite_sets_otherwise(
    tmp_path: Path,
) -> None:
    own_suite = 'name = "mine"\nscorer = { use = "top1" }\n'
    (planned,) = plan(tmp_path, own_suite + TIMED, ("Offline", ""))
    assert planned.data.shared
    assert dataset_of(planned) == dataset_of(planned, "accuracy")

    (planned,) = plan(tmp_path, f"{own_suite}{TIMED}\n{SCORED}", ("Offline", ""))
    assert not planned.data.shared
    assert dataset_of(planned).options["samples"] == 64
    assert dataset_of(planned, "accuracy").options["samples"] == 32


def test_a_scenarios_own_data_come_before_the_workloads(tmp_path: Path) -> None:
    workload = f'name = "mine"\nscorer = {{ use = "top1" }}\n{TIMED}\n{SCORED}'
    samples = {
        "": (64, 32),
        ITS_OWN: (16, 16),
        f"{ITS_OWN}\n{SCORED}": (16, 32),
        SCORED.replace("32", "8"): (64, 8),
    }
    samples_by_text = {}
    for text in samples:
        (planned,) = plan(tmp_path, workload, ("Offline", text))
        both = (planned.data.source("performance"), planned.data.source("accuracy"))
        samples_by_text[text] = tuple(source.options["samples"] for source in both)

    assert samples_by_text == samples


def test_an_official_gpt_oss_has_mlperfs_count_of_either_data_set(tmp_path: Path) -> None:
    """A quick one may use a part of one data set, an official one may not."""
    (planned,) = plan(tmp_path, f"{GPT_OSS}\n{TIMED}\n{SCORED}", ("Offline", ""))
    assert planned.data.expected().samples == 6396
    assert planned.data.expected("accuracy").samples == 4395
    assert (
        "gpt-oss-120b in Offline is timed on synthetic and scored on synthetic, in a process of "
        "its own"
    ) in extra_time_lines([planned], max_runs=5)
    quick = plan(tmp_path, f"{GPT_OSS}\n{TIMED}", ("Offline", ""), profile="quick")
    assert quick[0].data.shared
    with pytest.raises(SuiteError, match=r"s\.mlperf\.toml:\d+: .*add accuracy_dataset beside it"):
        in_profile(quick, "official")


def test_an_official_qwen3_vl_has_fewer_samples_in_interactive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = load_round("v6.1")._by_name
    ours = replace(workloads["qwen3-vl-235b-a22b"], harnesses=(LOADGEN,))
    monkeypatch.setitem(cast("dict[str, RoundWorkload]", workloads), ours.name, ours)
    offline, interactive = plan(
        tmp_path,
        f"{QWEN}\n{TIMED}",
        ("Offline", ""),
        ("Interactive", ITS_OWN),
        round_="v6.1",
    )

    assert (offline.data.expected().samples, offline.data.expected("accuracy").samples) == (
        48289,
        48289,
    )
    assert (interactive.data.expected().samples, interactive.data.expected("accuracy").samples) == (
        8000,
    ) * 2


def test_each_scored_data_set_has_accepted_scores_of_its_own(tmp_path: Path) -> None:
    """Those of the first scenario's data have the plain name, as ever."""
    workload = f'name = "mine"\ntokens = true\nscorer = {{ use = "top1" }}\n{TIMED}\n{SCORED}'
    limits = 'ttft_limit = "1s"\ntpot_limit = "1s"\n'
    cases = plan(
        tmp_path,
        workload,
        ("Offline", ""),
        ("Server", limits),
        ("Interactive", limits + ITS_OWN),
        ("SingleStream", ITS_OWN),
    )

    files = [file_of(one, tmp_path).name for one in cases]
    writers = [one.data.accuracy_scenario for one in cases]

    assert files == [*["null.fp32.json"] * 2, *["null.fp32.Interactive.json"] * 2]
    assert writers == ["Offline", "Offline", "Interactive", "Interactive"]


@pytest.mark.parametrize(
    ("workload", "scorer", "forms"),
    [
        ('twin_of = "gpt-oss-120b"', "", TO_INT32),
        ('twin_of = "gpt-oss-120b"', '{ use = "exact_match" }', TO_INT32),
        ('twin_of = "gpt-oss-120b"', '{ use = "exact_match", dtype = "int32" }', ()),
        ('twin_of = "gpt-oss-120b"', '{ use = "exact_match", answers = "text" }', ()),
        ('twin_of = "deepseek-r1"', '{ use = "exact_match", answers = "ids" }', TO_INT32),
        ('twin_of = "llama2-70b"', "", ()),
        ('twin_of = "llama2-70b"', '{ use = "rouge", dtype = "int32" }', ("int32", "int64")),
        ('twin_of = "e2e-rag-qna"', '{ use = "exact_match", answers = "tokens" }', TO_INT32),
        ('twin_of = "e2e-rag-qna"', JUDGED, ()),
        ('twin_of = "e2e-rag-qna"', "", ()),
        ("tokens = true", '{ use = "exact_match" }', ()),
        ('twin_of = "resnet50"', '{ use = "top1", dtype = "int32" }', ()),
    ],
)
def test_logs_of_token_ids_have_the_type_of_the_workloads_script(
    workload: str, scorer: str, forms: tuple[str, ...], tmp_path: Path
) -> None:
    """If a scorer does not read token ids, the log has the engine's own type."""
    text = f'name = "mine"\n{workload}\n{TIMED}' + (f"\nscorer = {scorer}" if scorer else "")
    (planned,) = plan(tmp_path, text, ("Offline", ""), profile="quick", round_="v6.1")

    assert job_of(planned).scoring.answer_forms == forms
