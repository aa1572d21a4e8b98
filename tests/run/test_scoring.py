"""Scoring is bounded by the patience of the session, and honest work counts as progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Factory
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.run.accuracy import Scoring, score_logs
from pytest_mlperf.run.answers import ACCURACY_LOG
from pytest_mlperf.run.child.process import DeliberateError, Patience
from tests.run.harness import ROOT
from tests.run.scorers_that_fail import LEVERAGE

pytestmark = pytest.mark.process

OWN = "tests.run.scorers_that_fail:"


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def scored(
    folder: Path,
    how: str = "well",
    *,
    patience: Patience = Patience(progress_s=60),  # noqa: B008 - a frozen value
    messages: list[str] | None = None,
    **data: Any,
) -> tuple[Accuracy, Scored]:
    """Score 8 right answers, which no engine had to give."""
    lines = (
        f'{{ "seq_id" : {number}, "qsl_idx" : {number}, "data" : "{str(number).encode().hex()}" }}'
        for number in range(8)
    )
    answers = ",\n".join(lines)
    folder.mkdir(exist_ok=True)
    log = folder / ACCURACY_LOG
    log.write_text(f"[\n{answers}\n]\n", "utf-8")
    scoring = Scoring(
        folder=folder,
        dataset=Factory(target=f"{OWN}Slow", options=data),
        scorer=Factory(target=f"{OWN}Exact", options={"how": how}),
        model=None,
        suite=None,
        patience=patience,
        show=(messages if messages is not None else []).append,
    )
    return score_logs(scoring, [{"log": str(log), "indices": list(range(8))}], 8)


def test_scores_are_the_scorers_and_its_prints_are_in_its_log(tmp_path: Path) -> None:
    """They come with the groups of their samples."""
    accuracy, samples = scored(tmp_path, "speaks", grouped=True)

    assert (dict(accuracy.scores), accuracy.samples, accuracy.full) == ({"same": 1.0}, 8, True)
    assert dict(samples.per_sample) == {"same": [1.0] * 8}
    assert samples.leverage == {"same": LEVERAGE}
    assert samples.groups == (0, 0, 0, 0, 1, 1, 1, 1)
    assert '{"event": "done"}' in (tmp_path / "score.log").read_text("utf-8")


@pytest.mark.parametrize(
    ("how", "data", "limit_s", "at"),
    [
        ("waits", {}, 2, ""),
        ("computes_for_ever", {}, 1, ""),
        ("well", {"hangs": True}, 6, " of 16 outputs and references read"),
    ],
)
def test_scoring_that_hangs_is_ended_by_the_limit_of_no_progress(
    tmp_path: Path, how: str, data: dict[str, Any], limit_s: float, at: str
) -> None:
    words = rf"no progress for {limit_s} s.*; killed; raise the ini setting mlperf_timeout"
    with pytest.raises(RunError, match=words) as raised:
        scored(tmp_path, how, patience=Patience(progress_s=limit_s), **data)

    assert raised.value.layer == "scorer"
    assert at in str(raised.value)


@pytest.mark.parametrize(("how", "takes_s"), [("prints", 0.0), ("well", 0.65)])
def test_scoring_that_goes_on_may_take_longer_than_the_limit_of_no_progress(
    tmp_path: Path, how: str, takes_s: float
) -> None:
    messages: list[str] = []

    accuracy, samples = scored(
        tmp_path, how, patience=Patience(progress_s=4), messages=messages, takes_s=takes_s
    )

    assert (accuracy.scores, samples.groups) == ({"same": 1.0}, None)
    assert messages[0] == "scoring"
    assert any(" of 16 outputs and references read, " in line for line in messages)


def test_a_scorer_that_breaks_is_one_error_of_the_scorer(tmp_path: Path) -> None:
    for how, kind, message in (
        ("crashes", RunError, "the scorer was killed by SIGSEGV"),
        ("exits", RunError, "SystemExit: 0 (in exits, "),
        ("unprintable", RunError, "Unprintable: (no text: its __str__ raised ValueError) (in unp"),
        ("lacks", DeliberateError, "the tokenizer is not here; set MODELS"),
    ):
        folder = tmp_path / how
        with pytest.raises(RunError) as raised:
            scored(folder, how)

        assert type(raised.value) is kind
        assert str(raised.value).startswith(message)
        assert (raised.value.layer, raised.value.log) == ("scorer", str(folder / "score.log"))
