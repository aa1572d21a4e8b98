"""An accuracy pass of an earlier session comes back as it was, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.extension import Leverage
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.stores.accuracy import AccuracyPasses
from tests.core.made import present

ACCURACY = Accuracy(
    scores={"clip": 31.7, "fid": 23.5},
    samples=2,
    total=2,
    full=True,
    folder="x",
    lower=("fid",),
    whole=("fid",),
)
PLAIN = Scored(indices=(0, 1), per_sample={"clip": [31.0, None], "fid": [20.0, 27.0]})
SCORED = replace(
    PLAIN,
    outputs=(7, 65_535),
    groups=(0, 0),
    leverage={"fid": Leverage(seen=0.75, df=12.5, hidden=2.0)},
)


def test_a_pass_comes_back_and_one_of_an_older_release_lacks_what_came_later(
    tmp_path: Path,
) -> None:
    passes = AccuracyPasses(tmp_path / "accuracy")
    passes.save("key", ACCURACY, SCORED)
    found = passes.load("key")

    file = tmp_path / "accuracy" / "key.json"
    content = json.loads(file.read_text("utf-8"))
    for name in ("lower", "whole"):
        del content["accuracy"][name]
    for name in ("outputs", "leverage", "groups"):
        del content["scored"][name]
    file.write_text(json.dumps(content), "utf-8")

    assert found == (replace(ACCURACY, source="stored"), SCORED)
    assert passes.load("key") == (
        replace(ACCURACY, source="stored", lower=(), whole=()),
        PLAIN,
    )
    passes.save("plain", ACCURACY, PLAIN)
    assert present(passes.load("plain"))[1] == PLAIN
    file.write_text("{", "utf-8")
    assert passes.load("key") is passes.load("other") is None
