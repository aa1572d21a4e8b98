"""Test the export of a curve for MLPerf Endpoints.

Measured data is kept, missing facts are asked for.

MLCommons' own checker judges where MLPERF_SUBMISSION_PYTHON names a Python that has it
(endpoints-submission-cli).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mlperf.addons.official.endpoints import curve_defects
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.rounds.endpoints import points_up_to, seed_sets
from tests.cli.recorded import ANSWERS, CONFIG, FOLDER, SUMMARY, change
from tests.cli.text import Say, one_line

HIGHEST = 33
CURVE = Path("bundle/results/echo-cpu/llama3_1-8b")
SAID = {
    "system": "echo-cpu",
    "model_name": "llama3_1-8b",
    "link_to_model": "https://example.org/model",
    "dataset_name": "prompts",
    "dataset_link": "https://example.org/prompts",
    "target_cohort": "2026-12-C0",
    "system_name": "Echo on a CPU",
    "shortened_system_name": "echo",
    "system_size": "1 node",
    "host_memory_configuration": "8 GB",
    "host_network_card_count": "1",
    "driver": "none",
    "filesystem": "ext4",
    "host_processor_core_count": 2,
}
WARMUP = """
[point.warmup]
duration_s = 1.5
requests_issued = 8
requests_completed = 8
concurrency = 4
data_source = "the same prompts"
"""


def test_points_that_miss_a_region_are_named() -> None:
    for highest in (*range(33, 2000), 65_536):
        assert curve_defects(points_up_to(highest), highest) == []
    assert curve_defects([64, 128], 128) == ["no point is in region ultra_low (1 to 32 requests)"]
    assert curve_defects([1, 64], 128) == [
        "it has 2 of 7 required points",
        "no point is in region low_concurrency",
        "no point is in region med_concurrency",
    ]
    assert curve_defects([*points_up_to(128), 1000], 128) == [
        "point 1,000 is above the maximum, 128"
    ]


def fill(file: Path, answers: dict[str, Any], more: str = "") -> None:
    """Fill in a skeleton as a person does."""
    lines = file.read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        key = line.partition(" = ")[0]
        if key in answers:
            lines[number] = f"{key} = {json.dumps(answers[key])}"
    at = lines.index("[system]" + next(x for x in lines if x.startswith("[system]"))[8:])
    file.write_text("\n".join([*lines[:at], *more.splitlines(), "", *lines[at:]]) + "\n", "utf-8")


def measured(folder: Path) -> None:
    """Make a session with the points of a declared maximum of a folder that the client wrote."""
    seeds = seed_sets()["A"]
    for point in points_up_to(HIGHEST):
        run = folder / f"c{point}"
        shutil.copytree(FOLDER / "c4", run)

        def as_asked(config: Any, point: int = point) -> None:
            config["settings"]["load_pattern"]["target_concurrency"] = point
            config["settings"]["runtime"]["scheduler_random_seed"] = seeds.scheduler
            config["settings"]["runtime"]["dataloader_random_seed"] = seeds.sample_index
            config["model_params"]["seed"] = seeds.model

        def as_measured(raw: Any, point: int = point) -> None:
            raw["run_config"]["load_pattern"]["target_concurrency"] = point
            raw["latency"]["avg"] *= point / 4

        change(run, as_asked, CONFIG)
        change(run, as_measured)


@pytest.fixture
def results(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an imported session, and write a skeleton of the facts to fill in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    measured(Path("day1"))
    names = ("--engine", "vllm", "--precision", "fp32", "--accelerator", "cpu")
    assert say("import", "endpoints", "day1", *names, "-o", "r.json")[0] == 0
    code, output = say("export", "endpoints", "r.json", "--about", "about.toml", "--skeleton")
    assert (code, output) == (0, "wrote about.toml: fill in its empty values\n")
    newest = Path(".mlperf/runs/20261121-000000-abcd/results.json")
    newest.parent.mkdir(parents=True)
    newest.write_bytes(Path("r.json").read_bytes())
    return "r.json"


def exported(say: Say, *more: object) -> tuple[int, str]:
    code, output = say("export", "endpoints", "r.json", "--about", "about.toml", *more)
    return code, one_line(output)


def exports(say: Say, *more: object) -> str:
    return one_line(say.ends(0, "export", "endpoints", "r.json", "--about", "about.toml", *more))


def test_every_point_is_a_folder_with_what_the_client_wrote(say: Say, results: str) -> None:
    fill(Path("about.toml"), SAID, WARMUP)
    output = exports(say, "-o", "bundle")
    assert f"wrote bundle: 7 points, the median of 1 run by tokens/s: day1 {'will'}" in output
    assert (
        "will be refused: no accuracy scores by MLCommons' client (accuracy_results.json) in these "
        "regions: "
        "low_latency, low_concurrency, med_concurrency, high_concurrency"
    ) in output
    assert output.endswith(UNVERIFIED_LABEL)
    folders = sorted(int(path.name[1:]) for path in CURVE.iterdir())
    assert tuple(folders) == points_up_to(HIGHEST)
    theirs = Path("day1/c4", SUMMARY).read_bytes()
    assert (CURVE / "r4/result_summary.json").read_bytes() == theirs
    assert (CURVE / "r4/config.yaml").read_bytes() == Path("day1/c4", CONFIG).read_bytes()
    point = yaml.safe_load((CURVE / "r33/point.yaml").read_text("utf-8"))
    assert (point["concurrency"], point["offline"], point["seed_set"]) == (33, "elected", "A")
    assert point["region"] == "high_concurrency"
    assert point["warmup"]["duration_s"] == 1.5
    assert point["max_supported_concurrency"] == 33
    described = json.loads((CURVE / "r33/system_desc.json").read_text("utf-8"))
    assert described["tps_utilization"] == 1.0
    assert UNVERIFIED_LABEL in Path("bundle/docs/README.md").read_text("utf-8")
    assert UNVERIFIED_LABEL in Path("bundle/src/vllm/README.md").read_text("utf-8")


def with_scores(*points: int) -> None:
    """Write the client's files of a scored run into run folders."""
    for point in points:
        shutil.copytree(ANSWERS / "accuracy", Path(f"day1/c{point}/accuracy"))


def test_the_default_is_the_newest_session(say: Say, results: str) -> None:
    say.ends(0, "export", "endpoints", "--about", "newest.toml", "--skeleton")
    assert Path("newest.toml").read_bytes() == Path("about.toml").read_bytes()


def test_of_each_region_the_scores_of_one_point_are_handed_in(say: Say, results: str) -> None:
    with_scores(*points_up_to(HIGHEST))
    fill(Path("about.toml"), SAID, WARMUP)
    output = exports(say, "-o", "bundle")
    assert "will be refused" not in output
    assert "accuracy scores left out (each region of the curve submits one): r3, r7, r19" in output
    written = sorted(int(path.parent.name[1:]) for path in CURVE.glob("r*/accuracy_results.json"))
    assert written == [1, 4, 11, 33]
    theirs = (ANSWERS / "accuracy/accuracy_results.json").read_bytes()
    assert (CURVE / "r33/accuracy_results.json").read_bytes() == theirs


def judged_by_their_checker() -> dict[str, set[str]]:
    """Return the rules that MLCommons' checker reports, by severity."""
    python = os.environ["MLPERF_SUBMISSION_PYTHON"]
    command = [python, "-m", "endpoints_submission_cli", "check-submission", "bundle", "--json"]
    judged = subprocess.run(command, check=False, capture_output=True, text=True)
    rules: dict[str, set[str]] = {}
    for finding in json.loads(judged.stdout)["results"]:
        rules.setdefault(finding["severity"], set()).add(finding["rule"])
    return rules


@pytest.mark.skipif(
    not os.environ.get("MLPERF_SUBMISSION_PYTHON"),
    reason="MLPERF_SUBMISSION_PYTHON names no Python that has endpoints-submission-cli",
)
@pytest.mark.process
def test_their_checker_takes_the_scores_and_refuses_only_what_was_said_to_be_missing(
    say: Say, results: str
) -> None:
    """All but their number: the recorded run had 60 samples, and the benchmark has 13,368."""
    fill(Path("about.toml"), SAID, WARMUP)
    assert exported(say, "-o", "bundle")[0] == 0
    assert judged_by_their_checker()["error"] == {"accuracy-coverage", "accuracy-present"}
    shutil.rmtree("bundle")
    with_scores(*points_up_to(HIGHEST))
    assert exported(say, "-o", "bundle")[0] == 0
    rules = judged_by_their_checker()
    assert {"accuracy-coverage", "accuracy-present"} <= rules["info"]
    assert rules["error"] == {"accuracy-sample-count"}


def test_future_refusals_are_listed(say: Say, results: str) -> None:
    """Requests without a seed, those that were left under way, and a region without scores."""
    names = ("--engine", "vllm", "--precision", "fp32", "--accelerator", "cpu")
    for point in points_up_to(HIGHEST):
        change(Path(f"day1/c{point}"), lambda raw: raw["model_params"].pop("seed"), CONFIG)
    change(
        Path("day1/c4"), lambda raw: raw["settings"]["runtime"].update(max_duration_ms=1), CONFIG
    )
    change(Path("day1/c4"), lambda raw: raw.update(n_samples_issued=244))
    with_scores(1, 4, 33)
    assert say("import", "endpoints", "day1", *names, "-o", "r.json")[0] == 0
    fill(Path("about.toml"), SAID, WARMUP)
    _, output = exported(say, "-o", "b")
    assert "will be refused: requests had no sampling seed" in output
    assert "left requests in flight, which MLPerf counts as lost" in output
    assert "(accuracy_results.json) in these regions: med_concurrency" in output


def test_nothing_is_made_up_and_nothing_is_written_over(say: Say, results: str) -> None:
    """Missing and impossible facts are refused."""
    about = Path("about.toml")
    skeleton = about.read_text("utf-8")
    rows: list[tuple[dict[str, Any], str, str]] = [
        (
            {"link_to_model": "", "filesystem": ""},
            "",
            "about.toml: fill in these values, which MLPerf Endpoints requires: "
            "point.link_to_model, system.node_types[0].filesystem",
        ),
        ({"max_supported_concurrency": 32}, "", "is 32; it must be a number of requests above 32"),
        ({"system": "../up"}, "", "submission.system is '../up', which cannot be a folder name"),
        ({}, "concurrency = 5", "the --about file must not set point.concurrency"),
    ]
    for answers, more, message in rows:
        about.write_text(skeleton, "utf-8")
        fill(about, {**SAID, **answers}, more)
        code, output = exported(say, "-o", "bundle")
        assert (code, message in output) == (2, True), output
        assert not Path("bundle").exists()
    about.unlink()
    message = "pytest-mlperf: about.toml does not exist; --skeleton writes one to fill in"
    assert exported(say, "-o", "bundle") == (2, message)

    about.write_text(skeleton, "utf-8")
    fill(Path("about.toml"), SAID)
    output = exports(say, "-o", "bundle")
    assert "the warm-up was not recorded (no events.jsonl); add point.warmup" in output
    assert "warmup:" not in (CURVE / "r4/point.yaml").read_text("utf-8").splitlines()
    shutil.rmtree("bundle")
    Path("bundle").mkdir()
    assert "bundle exists; nothing was written" in exported(say, "-o", "bundle")[1]
    assert "about.toml exists; nothing was written" in exported(say, "--skeleton")[1]
    assert list(Path("bundle").iterdir()) == []
    assert [path.name for path in Path().iterdir() if path.name.startswith(".bundle")] == []

    def faster(raw: Any) -> None:
        raw["duration_ns"] //= 2
        raw["qps"], raw["tps"], raw["latency"]["avg"] = None, None, raw["latency"]["avg"] / 2

    change(Path("day1/c4"), faster)
    assert "day1 was changed after the run: its points" in exported(say, "-o", "other")[1]
    shutil.rmtree("day1")
    assert "day1 is missing" in exported(say, "-o", "other")[1]
