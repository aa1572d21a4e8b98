"""The tiny Wan 2.2: trained, far from chance, and found out when it is damaged."""

from __future__ import annotations

import importlib
import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.core.errors import RunError
from tests.suites.tiny_twin import TINY, UNETS, Twin, twin_marks

pytestmark = twin_marks(*UNETS)

FOLDER = TINY / "wan-2.2"
SHAPE = (9, 16, 16, 3)
SUITE = "wan-2.2"


@pytest.fixture(autouse=True)
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the suite's scorer, found as the suite's conftest.py does."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("moving_digits")


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    """A still of each video does not pass, one of another length is refused."""
    reached = twin.training["moving_digits"]
    others = twin.score([*answers[21:], *answers[:21]]).aggregate["moving_digits"]
    assert others == pytest.approx(twin.training["of_other_prompts"], abs=0.5)
    assert others < 2 < 10 * others + 20 < twin.gate("moving_digits")
    assert reached < twin.training["real"]
    videos = [np.frombuffer(answer, np.uint8).reshape(SHAPE) for answer in answers]
    stills = [np.repeat(video[4:5], len(video), axis=0).tobytes() for video in videos]
    assert twin.score(stills).aggregate["moving_digits"] < twin.gate("moving_digits") / 2
    with pytest.raises(RunError, match=r"sample 1 has 6911 bytes, but a video of shape"):
        twin.score([answers[0], answers[1][:-1], *answers[2:]])


def test_its_data_set_has_a_prompt_for_all_that_a_video_can_show(twin: Twin, judge: Any) -> None:
    """One that names too little or too much is refused."""
    places = [range(len(words)) for words in judge.WORDS.values()]
    assert [tuple(judge.read(prompt)) for prompt in twin.references] == list(product(*places))
    for prompt in ("", "a red seven", "a red seven moves up and down", "a red two moves up"):
        with pytest.raises(RunError, match="does not name one digit, colour and direction"):
            judge.read(prompt)


def test_the_pipeline_is_one_of_diffusers(twin: Twin) -> None:
    """Of the classes of Wan 2.2, with both transformers, and small."""
    index = json.loads((twin.model / "model_index.json").read_text("utf-8"))
    sizes = [file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()]

    assert index["_class_name"] == "WanPipeline"
    assert index["transformer"][1] == index["transformer_2"][1] == "WanTransformer3DModel"
    assert index["boundary_ratio"] == 0.875
    assert sum(sizes) < 3e6
