"""`pytest-mlperf published`: MLCommons' results, and that only like stands with like."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from pytest_mlperf.addons.official.published_table import results_in
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.rounds.published import (
    RESULTS_FILE,
    OfficialResult,
    official_results,
)
from tests.cli.text import Say, differing


def test_every_result_of_four_rounds_is_in_the_package_as_published() -> None:
    """What cannot be compared is in lists of its own."""
    everything = official_results()
    assert Counter(own.round for own in everything) == {
        "v4.1": 937,
        "v5.1": 1448,
        "v6.0": 520,
        "v6.1": 492,
    }
    assert Counter(own.harness for own in everything) == {"loadgen": 3319, "endpoints": 78}
    measured = Counter((own.round, own.power_unit) for own in everything if own.power)
    assert measured == {
        ("v4.1", "W"): 29,
        ("v4.1", "mJ"): 2,
        ("v5.1", "W"): 16,
        ("v5.1", "mJ"): 8,
    }
    assert len(files("pytest_mlperf.rounds").joinpath(RESULTS_FILE).read_bytes()) <= 400_000
    values = {
        ("v4.1", "1xMI300X_2xEPYC-9374F", "llama2-70b-99.9", "Offline"): (3062.72, "tokens/s"),
        ("v5.1", "XE7745_H200_NVL_141GBx8_TRT", "whisper", "Offline"): (31674.1, "tokens/s"),
        ("v6.0", "87xMI355X_22xEPYC_9575F", "llama2-70b-99", "Server"): (1016380.0, "tokens/s"),
        ("v6.1", "8xMI350X_2xEPYC_9575F", "dlrm-v3", "Server"): (9297.78, "queries/s"),
    }
    published = [
        (key, (own.value, own.unit))
        for own in official_results()
        if (key := (own.round, own.system, own.model, own.scenario)) in values
    ]
    assert sorted(published) == sorted(values.items())
    groups: dict[tuple[str, ...], list[OfficialResult]] = {}
    for official in official_results():
        groups.setdefault(official.kind, []).append(official)
    for results in groups.values():
        for name in ("scenario", "unit", "statistic", "harness"):
            assert len({getattr(own, name) for own in results}) == 1
    statistics = {own.statistic for own in official_results() if own.is_latency}
    assert statistics == {
        "mean",
        "p90 with early stopping",
        "p99 with early stopping",
        "8 x SingleStream's p90",
    }


def test_a_rate_is_shared_among_accelerators_and_best_first(say: Say) -> None:
    out = say.ends(
        0, "published", "bert-99.9", "--accelerator", "H200", "--per", "accelerator", "--most", "99"
    )
    values = [
        float(line.split()[0].replace(",", "").rstrip("~*^"))
        for line in out.split("\n\n")[0].splitlines()[2:]
    ]
    assert values == sorted(values, reverse=True)
    best = max(
        own.value / own.count
        for own in official_results()
        if (own.model, own.scenario, own.division) == ("bert-99.9", "Offline", "closed")
        if own.accelerator.startswith("NVIDIA H200")
    )
    assert values[0] == pytest.approx(best, rel=1e-5)
    assert max(map(len, out.splitlines())) <= 80


def test_a_workload_has_one_list_and_a_class_is_no_part_of_a_name(say: Say) -> None:
    """ResNet-50 is "resnet50" in v4.1 and "resnet" since; L4 is not L40S."""
    by_loadgen, by_checker = (
        say.ends(0, "published", name, "--scenario", "Offline", "--most", "99")
        for name in ("resnet50", "resnet")
    )
    assert by_loadgen == by_checker
    assert by_loadgen.count("samples/s") == 1
    assert " v4.1" in by_loadgen
    assert " v6.0" in by_loadgen

    def products(accelerator: str) -> set[str]:
        words = ("--accelerator", accelerator, "--format", "json", "--division", "all")
        return {
            own["accelerator"] for own in json.loads(say.ends(0, "published", *words))["results"]
        }

    assert products("L4") == {"NVIDIA L4", "NVIDIA L4-PCIe-24GB"}
    assert not [name for name in products("MI300X") if "MI325X" in name]


def test_csv_has_every_column_and_markdown_a_table_for_each_list(say: Say) -> None:
    out = say.ends(0, "published", "--division", "all", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == len(official_results())
    assert {row["nodes"] for row in rows} >= {"1", "18"}
    out = say.ends(0, "published", "bert-99", "--most", "1", "--format", "markdown")
    assert out.startswith("### bert-99, Offline, samples/s\n\n| value | accelerators |")
    assert "|\n\n44 more, shown with --most 45\n" in out
    assert "trademarks of MLCommons" in out


def test_watts_of_a_round_are_listed(say: Say) -> None:
    out = say.ends(0, "published", "llama2-70b-99", "--per", "watt", "--round", "v4.1")
    assert "llama2-70b-99, Offline, tokens/s/W" in out
    assert "4.10567" in out  # 25,262.1 tokens/s at 6,152.98 W


def test_unpublished_results_are_reported_as_such(say: Say) -> None:
    """A latency is shared by no accelerators and no watts."""
    lines = {
        "bert-98": "there are no official results of 'bert-98'; did you mean 'bert-99'?",
        "--round v5.0": "there are no results of round 'v5.0'; did you mean ",
        "whisper --accelerator A100": "no official result matches: use fewer filters",
        "--per watt --round v6.1": "matches and has its power in watts",
        "--scenario SingleStream --per accelerator": "no official result matches",
        "--scenario SingleStream --per watt": "no official result matches",
    }
    rows = [(("published", *line.split()), 2, (message,)) for line, message in lines.items()]
    assert differing(say, rows) == []


def test_a_table_is_bounded_row_by_row(say: Say, tmp_path: Path) -> None:
    """As results are test by test: all rounds together may have more rows than one document."""
    table = json.loads(say.ends(0, "published", "--format", "json"))
    table["results"] *= 1 + 20_000 // len(table["results"])
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(table), "utf-8")
    assert len(results_in(file)) == len(table["results"])
    table["results"][-1] = {**table["results"][-1], "value": 0}
    (tmp_path / "broken.json").write_text(json.dumps(table), "utf-8")
    with pytest.raises(
        MlperfError, match=rf"results\[{len(table['results']) - 1}\]\.value: must be"
    ):
        results_in(tmp_path / "broken.json")
