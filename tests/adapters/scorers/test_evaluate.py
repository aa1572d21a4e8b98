from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.evaluate import EvaluateScorer, read_result
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.registry import check_call
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import NAMES, byte_level, write

Found = dict[str, dict[str, Any]]

REVISION = "0123456789abcdef0123456789abcdef01234567"

METRIC = '''
import datasets
import evaluate
import numpy as np


class Length(evaluate.Metric):
    """Share of the reference's length, and what was given."""

    def _info(self):
        kind = datasets.Value({kind!r})
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="",
            features=datasets.Features({{"predictions": kind, "references": kind}}),
        )

    def _compute(self, predictions, references, {arguments}):
        {body}
'''

SCRIPTS = {
    "lengths": METRIC.format(
        kind="string",
        arguments="upper=False",
        body="""given = [p.upper() if upper else p for p in predictions]
        return {
            "exact": [float(p == r) for p, r in zip(given, references)],
            "length": np.array([len(p) for p in given]),
            "samples": np.int64(len(given)),
            "said": " | ".join(given),
            "three": [1.0, 2.0, 3.0, 4.0, 5.0],
        }""",
    ),
    "right": METRIC.format(
        kind="int64",
        arguments="",
        body="return {'accuracy': sum(map(int.__eq__, predictions, references)) / len(references)}",
    ),
    "random": METRIC.format(
        kind="int64", arguments="", body="return {'drawn': float(np.random.random())}"
    ),
    "breaks": METRIC.format(kind="int64", arguments="", body="raise KeyError('no such word')"),
    "silent": METRIC.format(kind="int64", arguments="", body="return {'verdict': 'fine'}"),
    "vague": METRIC.format(kind="int64", arguments="", body="return {'f1': float('nan')}"),
}


def int64(*numbers: int) -> list[int]:
    """Return an output as JSON can hold it: a list of bytes."""
    return list(np.array(numbers, "<i8").tobytes())


def hub_with_one_metric(home: Path) -> None:
    """Write the cache of the Hugging Face Hub as it is after ORG/right was fetched once."""
    repository = home / "hub" / "spaces--org--right"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "a1").write_text(SCRIPTS["right"], "utf-8")
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (snapshot / "right.py").symlink_to("../../blobs/a1")


def cases(folder: Path, model: Path) -> dict[str, dict[str, Any]]:
    texts = ["The fox", "jumps"]
    outputs = [int64(*one.ids, 2) for one in byte_level().encode_batch(texts)]
    numbers = [int64(1), int64(-7), int64(2**40), int64(4)]
    labels = [1, -7, 2**40, 5]

    def local(name: str, **options: Any) -> dict[str, Any]:
        local_options = {"metric": f"evaluate:{folder}/{name}.py", "outputs": "number", **options}
        return {"options": local_options, "outputs": numbers, "references": labels}

    def text(**options: Any) -> dict[str, Any]:
        text_options = {"metric": f"evaluate:{folder}/lengths", "model": str(model), **options}
        return {"options": text_options, "outputs": outputs, "references": ["The fox", "JUMPS"]}

    def hub(revision: str) -> dict[str, Any]:
        return local("right", metric=f"evaluate:org/right@{revision}")

    return {
        "text": text(),
        "contract": {
            **text(),
            "contract": {
                "model": str(model),
                "options": {"metric": f"evaluate:{folder}/lengths"},
            },
        },
        "text, scaled, upper case": text(scale=100.0, compute={"upper": True}),
        "numbers": local("right"),
        "numbers, 32 bits": {
            **local("right", dtype="int32"),
            "outputs": [list(np.array([number], "<i4").tobytes()) for number in (1, -7, 0, 5)],
        },
        "random": local("random"),
        "random again": {**local("random"), "note": "numpy's state is another one"},
        "breaks": local("breaks"),
        "silent": local("silent"),
        "vague": local("vague"),
        "unknown argument": local("right", compute={"beta": 2}),
        "pinned": hub(REVISION),
        "pinned elsewhere": hub(REVISION[::-1]),
    }


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Score every case with the real library, in one process, with no network."""
    if find_spec("evaluate") is None:
        pytest.skip("the extra [evaluate] is not installed")
    home = tmp_path_factory.mktemp("huggingface")
    hub_with_one_metric(home)
    folder = tmp_path_factory.mktemp("metrics")
    for name, script in SCRIPTS.items():
        (folder / f"{name}.py").write_text(script, "utf-8")
    (folder / "lengths").mkdir()
    (folder / "lengths.py").rename(folder / "lengths" / "lengths.py")
    model = write(folder / "model", byte_level(), {"tokenizer_class": "TokenizersBackend", **NAMES})
    cases_file, answer = folder / "cases.json", folder / "found.json"
    cases_file.write_text(json.dumps(cases(folder, model)), "utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("evaluate_driver.py")), cases_file, answer],
        env={
            **kept,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "HF_EVALUATE_OFFLINE": "1",
            "USE_TORCH": "0",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: Found = json.loads(answer.read_text("utf-8"))
    return answers


@pytest.mark.process
def test_numbers_are_aggregates_and_lists_of_one_number_per_sample_are_scores(
    evaluated: Found,
) -> None:
    """Text, scaled numbers, arguments, 32 bits and pins; random numbers are reproduced."""
    plain = {
        "per_sample": {"exact": [1.0, 0.0], "length": [7.0, 5.0]},
        "aggregate": {"exact": 0.5, "length": 6.0, "samples": 2.0},
    }
    scaled = {
        "per_sample": {"exact": [0.0, 100.0], "length": [700.0, 500.0]},
        "aggregate": {"exact": 50.0, "length": 600.0, "samples": 200.0},
    }
    number = {"per_sample": {}, "aggregate": {"accuracy": 0.75}}
    expected = {
        "text": plain,
        "contract": plain,
        "text, scaled, upper case": scaled,
        "numbers": number,
        "numbers, 32 bits": number,
        "pinned": number,
        "random": evaluated["random again"],
    }

    assert {name: evaluated[name] for name in expected} == expected


@pytest.mark.process
def test_a_metric_that_gives_no_score_is_an_error(evaluated: Found) -> None:
    """evaluate itself would take whatever commit of the metric it finds in its cache."""
    elsewhere = f"right at {REVISION[::-1]} is not on this machine"
    for name, error, message in (
        ("breaks", "RunError", "breaks.py failed (KeyError: 'no such word')"),
        ("unknown argument", "RunError", "right.py failed (TypeError: "),
        ("silent", "RunError", "the metric returned {'verdict': 'fine'}; it must"),
        ("vague", "RunError", "the metric returned f1 = nan, which is not finite"),
        ("pinned elsewhere", "UnavailableError", elsewhere),
    ):
        assert evaluated[name]["error"] == error
        assert message in evaluated[name]["message"]


def test_metrics_that_could_change_and_wrong_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = f"evaluate:{__file__}"
    metrics = [
        ("rouge", "metric = 'rouge'; write \"evaluate:PATH\""),
        ("evaluate:", 'write "evaluate:PATH"'),
        (
            "evaluate:rouge",
            "'rouge' is not a file or folder here; .* where REVISION is a commit",
        ),
        ("evaluate:org/rouge", "where REVISION is a commit"),
        ("evaluate:org/rouge@main", "where REVISION is a commit"),
        ("evaluate:org/rouge@0123456", "where REVISION is a commit"),
        (f"evaluate:rouge@{REVISION}", "where REVISION is a commit"),
        (f"evaluate:org/rouge@{REVISION.upper()}", "where REVISION is a commit"),
    ]
    scripts = [
        ("gone.py", "the metric script .*gone.py does not exist"),
        ("", r"holds no \w+\.py; name the script"),
    ]
    options: list[tuple[dict[str, Any], str]] = [
        ({"outputs": "image"}, "outputs = 'image' is not one of text, number"),
        (
            {"outputs": "number", "dtype": "int8"},
            "dtype = 'int8' is not one of int32, int64",
        ),
        ({"compute": {"references": []}}, "compute must not set references: predictions"),
        ({"outputs": "text"}, "neither its option tokenizer nor the workload's model is set"),
    ]

    def numbers(metric: str) -> EvaluateScorer:
        return EvaluateScorer(metric=metric, outputs="number")

    assert differences(numbers, SuiteError, metrics) == []
    assert (
        differences(lambda name: numbers(f"evaluate:{tmp_path / name}"), UnavailableError, scripts)
        == []
    )
    assert (
        differences(lambda options: EvaluateScorer(metric=here, **options), SuiteError, options)
        == []
    )
    with pytest.raises(SuiteError, match="needs the option 'metric'"):
        check_call("scorer 'evaluate'", EvaluateScorer, {})
    with pytest.raises(RunError, match=r"\(4 bytes\) of sample 1 is not a number of type int64"):
        numbers(here).score([bytes(8), bytes(4)], [0, 0])


def test_a_missing_library_names_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evaluate", None)
    scorer = EvaluateScorer(metric=f"evaluate:{__file__}", outputs="number")

    with pytest.raises(EnvironmentFault, match=r"needs evaluate, .*'pytest-mlperf\[evaluate\]'"):
        scorer.score([bytes(8)], [0])


numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=1, max_size=20), st.sampled_from([1.0, 100.0, -0.5]))
def test_the_aggregate_of_scores_is_their_mean(values: list[float], scale: float) -> None:
    scores = read_result({"f1": values}, samples=len(values), scale=scale)

    assert scores.per_sample == {"f1": [scale * value for value in values]}
    assert scores.aggregate["f1"] == pytest.approx(
        scale * math.fsum(values) / len(values), rel=1e-9, abs=1e-6
    )


def test_non_numbers_are_left_out_and_non_finite_results_are_an_error() -> None:
    other = [[1.0], (1.0, 2.0, 3.0), [1.0, "b"], [[1.0], [2.0]], np.eye(2), "ab", None, {"a": 1.0}]
    for value in other:
        scores = read_result({"other": value, "score": 0.25}, samples=2, scale=1.0)
        assert (scores.per_sample, scores.aggregate) == ({}, {"score": 0.25}), value

    endless = [
        math.nan,
        math.inf,
        [0.5, math.nan],
        [math.inf, -math.inf],
        np.array([-math.inf, 1]),
    ]
    rows = [({"f1": value}, "the metric returned f1 = ") for value in endless]
    assert (
        differences(lambda result: read_result(result, samples=2, scale=1.0), RunError, rows) == []
    )
