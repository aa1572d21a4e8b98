"""Test that `check_scorer` passes a correct scorer, and detects each defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_mlperf import RunError, Scores
from pytest_mlperf.testing import check_scorer

OUTPUTS = [b"one", b"two", b"three", b"four"]
REFERENCES = [["one"], ["two"], ["3"], ["four"]]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class Right:
    """Share of outputs that are one of the references."""

    metrics: tuple[str, ...] = ("same",)

    def __init__(self, *, model: str | None) -> None:
        self.model = model

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        return self.of([self.of_sample(o, r) for o, r in zip(outputs, references, strict=True)])

    def of_sample(self, output: bytes, reference: Any) -> float:
        return 100.0 * (output.decode("utf-8", "replace") in reference)

    def of(self, scores: list[float]) -> Scores:
        return Scores(per_sample={"same": scores}, aggregate={"same": mean(scores)})


def scores(of_samples: list[float], aggregate: float, **fields: Any) -> Scores:
    return Scores(per_sample={"same": of_samples}, aggregate={"same": aggregate}, **fields)


def giving(of: Callable[[Any, list[float]], Any]) -> type[Right]:
    """Return a scorer that gives something else of its samples' scores."""
    return type("Giving", (Right,), {"of": of})


UNKNOWN = frozenset({"error"})
UNDECLARED: type[Right] = type("Undeclared", (Right,), {"metrics": ("other",)})


class ByPlace(Right):
    """Scores the place of a sample."""

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        return self.of([float(place) for place, _ in enumerate(outputs)])


class Changes(Right):
    def of_sample(self, output: bytes, reference: Any) -> float:
        reference.append("seen")
        return super().of_sample(output, reference)


class Crashes(Right):
    def of_sample(self, output: bytes, reference: Any) -> float:
        return 100.0 * (output.decode() in reference)


class Refuses(Right):
    def of_sample(self, output: bytes, reference: Any) -> float:
        if not output.isalnum():
            raise RunError("scorer", f"{output!r} is no word")
        return super().of_sample(output, reference)


class Attached(Right):
    """Score the attachments, and no output."""

    artefacts = ("text",)

    def score(
        self,
        outputs: Sequence[bytes],
        references: Sequence[Any],
        artefacts: Sequence[Mapping[str, bytes]] = (),
    ) -> Scores:
        del outputs
        return super().score([each["text"] for each in artefacts], references)


class AttachedCrashes(Attached):
    def of_sample(self, output: bytes, reference: Any) -> float:
        return 100.0 * (output.decode() in reference)


def test_a_scorer_of_artefacts_is_given_them() -> None:
    tables = [{"text": output} for output in OUTPUTS]

    assert check_scorer(Attached, [b""] * 4, REFERENCES, artefacts=tables).aggregate == {
        "same": 75.0
    }
    with pytest.raises(AssertionError, match="raised for the artefact text"):
        check_scorer(AttachedCrashes, [b""] * 4, REFERENCES, artefacts=tables)
    for absent in (None, [{"other": b""}] * 4):
        with pytest.raises(AssertionError, match=r"it needs the artefacts text .*: pass"):
            check_scorer(Attached, [b""] * 4, REFERENCES, artefacts=absent)


def test_a_right_scorer_passes_and_its_scores_come_back() -> None:
    for scorer in (Right, Refuses):
        assert check_scorer(scorer, OUTPUTS, REFERENCES).aggregate == {"same": 75.0}


def test_a_wrong_scorer_is_found() -> None:
    rows: list[Any] = [
        (
            giving(lambda _, s: {"same": mean(s)}),
            "returned {'same': 75.0}: return pytest_mlperf.Scores",
        ),
        (
            giving(lambda _, s: scores(s[1:], mean(s))),
            "the scorer gave 3 scores of same for 4 samples",
        ),
        (
            giving(lambda _, s: scores(s, float("nan"))),
            "the scorer gave nan as same of the data set",
        ),
        (
            giving(lambda _, s: scores(s, mean(s) / 100)),
            r"by sample is 75, its aggregate 0\.75: the mean",
        ),
        (
            giving(lambda _, s: scores(s, mean(s), lower=UNKNOWN)),
            "name a metric without an aggregate",
        ),
        (UNDECLARED, "it returns same; its attribute `metrics` has other: add every metric"),
        (ByPlace, "same by sample changes with the order of the samples"),
        (Changes, r"score\(\) changed the references: copy what you change"),
        (Crashes, "UnicodeDecodeError is raised for the output .+: score a malformed answer"),
    ]
    for scorer, problem in rows:
        with pytest.raises(AssertionError, match=problem) as caught:
            check_scorer(scorer, OUTPUTS, REFERENCES)
        assert str(caught.value).startswith(f"scorer {scorer.__name__}: ")
