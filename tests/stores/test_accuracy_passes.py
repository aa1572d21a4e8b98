"""An accuracy pass of an earlier session comes back as it was, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.extension import Leverage
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.stores.accuracy import AccuracyPasses

ACCURACY = Accuracy(
    scores={"clip": 31.7, "fid": 23.5},
    samples=2,
    total=2,
    full=True,
    folder="x",
    lower=("fid",),
    whole=("fid",),
)
SCORED = Scored(indices=(0, 1), per_sample={"clip": [31.0, None], "fid": [20.0, 27.0]})


def test_a_pass_comes_back_with_directions_and_gaps(tmp_path: Path) -> None:
    passes = AccuracyPasses(tmp_path / "accuracy")
    passes.save("key", ACCURACY, SCORED)

    found = passes.load("key")

    assert found is not None
    assert found[0].source == "stored"
    assert (found[0].lower, found[0].whole) == (("fid",), ("fid",))
    assert found[1] == SCORED


def test_a_pass_of_an_older_release_says_nothing_of_directions(tmp_path: Path) -> None:
    passes = AccuracyPasses(tmp_path)
    passes.save("key", ACCURACY, SCORED)
    file = tmp_path / "key.json"
    content = json.loads(file.read_text("utf-8"))
    del content["accuracy"]["lower"], content["accuracy"]["whole"]
    file.write_text(json.dumps(content), "utf-8")

    found = passes.load("key")

    assert found is not None
    assert (found[0].lower, found[0].whole) == ((), ())


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("{", "utf-8")

    assert AccuracyPasses(tmp_path).load("key") is None
    assert AccuracyPasses(tmp_path).load("other") is None


def test_digests_of_outputs_come_back_with_the_scores(tmp_path: Path) -> None:
    scored = Scored(indices=(0, 1), per_sample={"clip": [31.0, None]}, outputs=(7, 65_535))
    passes = AccuracyPasses(tmp_path)
    passes.save("key", ACCURACY, scored)

    found = passes.load("key")

    assert found is not None
    assert found[1] == scored


def test_a_pass_of_an_older_release_has_no_digests(tmp_path: Path) -> None:
    passes = AccuracyPasses(tmp_path)
    passes.save("key", ACCURACY, SCORED)
    file = tmp_path / "key.json"
    content = json.loads(file.read_text("utf-8"))
    del content["scored"]["outputs"]
    file.write_text(json.dumps(content), "utf-8")

    found = passes.load("key")

    assert found is not None
    assert found[1] == SCORED


def test_leverage_comes_back_and_a_pass_of_an_older_release_has_none(tmp_path: Path) -> None:
    scored = replace(SCORED, leverage={"fid": Leverage(seen=0.75, df=12.5, hidden=2.0)})
    passes = AccuracyPasses(tmp_path)
    passes.save("key", ACCURACY, scored)
    found = passes.load("key")
    file = tmp_path / "key.json"
    content = json.loads(file.read_text("utf-8"))
    del content["scored"]["leverage"]
    file.write_text(json.dumps(content), "utf-8")

    assert found is not None
    assert found[1] == scored
    older = passes.load("key")
    assert older is not None
    assert older[1] == SCORED


def test_groups_come_back_and_a_pass_of_an_older_release_has_none(tmp_path: Path) -> None:
    scored = Scored(
        indices=(0, 1), per_sample={"clip": [31.0, None]}, outputs=(7, 8), groups=(0, 0)
    )
    passes = AccuracyPasses(tmp_path)
    passes.save("key", ACCURACY, scored)
    found = passes.load("key")
    file = tmp_path / "key.json"
    content = json.loads(file.read_text("utf-8"))
    del content["scored"]["groups"]
    file.write_text(json.dumps(content), "utf-8")
    older = passes.load("key")

    assert found is not None
    assert found[1] == scored
    assert older is not None
    assert older[1].groups is None
