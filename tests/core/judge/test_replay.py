"""Judgements stay what they are: every field of every verdict on thousands of random cases."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from pytest_mlperf.core.verdict import Outcome
from tests.core.judge.replay import DATA, replayed


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))
    return stored


@pytest.mark.slow
def test_every_judgement_is_the_kept_one(kept: dict[str, Any]) -> None:
    """Made anew by `python -m tests.core.judge.replay` where a rule changes on purpose."""
    now = replayed()
    assert now.keys() == kept.keys()
    changed = [name for name, judgement in now.items() if judgement != kept[name]]
    assert not changed, f"{len(changed)} changed, such as {changed[:5]}"


def test_the_kept_judgements_say_every_word_of_the_rules(kept: dict[str, Any]) -> None:
    """A replay that never met a word would prove nothing of it."""
    names = "OK IMPROVED PERF_DROP ACC_DROP GATE_FAIL SUSPECT PROVISIONAL INCONCLUSIVE NO_BASELINE"

    words = {judgement.get("outcome") for judgement in kept.values()}

    assert {Outcome[name] for name in (*names.split(), "INVALID")} <= words
