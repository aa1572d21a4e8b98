"""What MLCommons' checker cannot convert in system.json is refused by its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.addons.official.submission.form import Form
from pytest_mlperf.addons.official.submission.refusals import NUMBERS, TEXTS, refusals
from pytest_mlperf.rounds import load_round


def problems(**description: object) -> list[str]:
    form = Form(
        folder=Path("form"),
        system="box",
        description={"division": "closed", "submitter": "Acme", **description},
        implementation={},
        readme="",
        calibration="",
        source={},
    )
    return list(refusals((), form, (), load_round("v6.1")))


@pytest.mark.parametrize("key", NUMBERS)
def test_a_count_must_be_a_whole_number(key: str) -> None:
    for value in ("8", 8, 8.0, "0", 0, True):
        assert problems(**{key: value}) == []
    for value in ("many", "", "8 GPUs", "-1", "8.5", "²", 8.5, float("nan"), float("inf")):
        words = f"form/system.json: {key} is {value!r}; it must be a whole number"
        assert problems(**{key: value}) == [words]


@pytest.mark.parametrize("key", TEXTS)
def test_what_the_checker_reads_as_text_must_be_one(key: str) -> None:
    for text in ("", "8"):
        assert problems(**{key: text}) == []
    for value in (8, 8.5, True):
        words = f"form/system.json: {key} is {value!r}; it must be a text in quotes"
        assert problems(**{key: value}) == [words]
