"""Describe every metric, from the table of metrics and the scorers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from mlperf_reference.markdown import code, named, slug, table, text
from mlperf_reference.words import METRICS as WORDS
from mlperf_reference.words import SCORES as SCORE_WORDS
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.core.metrics import METRICS, UNGATED, Metric, gated_metrics
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.registry import metrics as metrics_of
from pytest_mlperf.registry import registered, resolve

UNITS = {"1": "a count"}

PARAGRAPH = re.compile(r'Metric "(\w+)" \((.+), (higher|lower)\): (.+)')
"""Paragraph of a scorer's docstring: name, scale, better direction, meaning."""


def anchor(name: str) -> str:
    """Return the id of a metric on the page."""
    return slug("metric", name)


def scores() -> Mapping[str, list[str]]:
    """Return the scorers that give each score, by the score."""
    found: dict[str, list[str]] = {}
    for scorer in registered("scorers"):
        for name in metrics_of(scorer) or ():
            found.setdefault(name, []).append(scorer)
    return found


def score_words() -> Mapping[str, tuple[str, str, str]]:
    """Return scale, direction and meaning of scores, from docstrings of scorers and from words."""
    scorers = (declaration_of(resolve(entry.value)) for entry in registered("scorers").values())
    texts = (PARAGRAPH.fullmatch(text) for scorer in scorers for text in scorer.about)
    return {match[1]: (match[2], match[3], match[4]) for match in texts if match} | {**SCORE_WORDS}


def markdown() -> str:
    """Return the measured metrics, then the scores."""
    return "\n\n".join(
        [
            "## Measured",
            table(
                ("metric", "unit", "better", "default limit", "name in tables: meaning"),
                map(_row, METRICS.values()),
            ),
            "## Scores",
            table(("score", "scale", "better", "scorers", "meaning"), _scores()),
        ]
    )


def gated_markdown() -> str:
    """Return the metrics that each scenario gates by default."""
    rows = [
        [code(scenario), _names(gated_metrics(scenario)), _names(_of_language_models(scenario))]
        for scenario in Scenario
    ]
    return table(("scenario", "gated", "language models"), rows)


def _of_language_models(scenario: Scenario) -> tuple[str, ...]:
    return gated_metrics(scenario, tokens=True)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(code, names))


def _row(metric: Metric) -> list[str]:
    words = f"*{text(metric.title)}*: {text(WORDS.get(metric.name, ''))}"
    if metric.min_queries:
        words += f" Gated where a run has {metric.min_queries:,} queries, or the baseline gated it."
    return [
        named(metric.name, anchor(metric.name)),
        UNITS.get(metric.unit, metric.unit),
        _better(metric.direction),
        _limit(metric),
        words,
    ]


def _limit(metric: Metric) -> str:
    if metric.name in UNGATED or math.isinf(metric.limit):
        return "never gated"
    verb = "drop" if metric.direction is Direction.HIGHER else "rise"
    return f"{metric.limit:.0%} {verb}".replace("% ", "\u00a0%\u00a0")


def _better(direction: Direction) -> str:
    return "" if direction is Direction.NEITHER else str(direction)


def _scores() -> Iterator[list[str]]:
    words_by_score = score_words()
    for name, scorers in scores().items():
        scale, better, words = words_by_score.get(name, ("", "", ""))
        yield [
            named(name, slug("score", name)),
            scale,
            better,
            ", ".join(map(code, scorers)),
            text(words),
        ]
