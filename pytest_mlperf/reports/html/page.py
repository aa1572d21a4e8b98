"""Put the page together: one file that loads nothing and runs no script but its own two."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.core.foreign_text import every_text, visible
from pytest_mlperf.core.merging import Absent
from pytest_mlperf.core.results import LABEL, Results
from pytest_mlperf.reports.html.case_figures import Packed, figures_of
from pytest_mlperf.reports.html.cases import in_words, shown
from pytest_mlperf.reports.html.headline import about, counts, doubts, verdict
from pytest_mlperf.reports.html.model import Beside, Figure, Grouped, grouped
from pytest_mlperf.reports.html.overview import accuracy, forest, heat_map, relative
from pytest_mlperf.reports.html.runs import cost, energy, spent, spread, strip
from pytest_mlperf.reports.html.series import HISTORY, LATENCY, MOMENTS, POWER

LARGEST = 5 * 10**6
"""Bytes of a page."""

CUTS = ((200, 10_000), (50, 10_000), (10, 2_000), (10, 1_000), (5, 400), (2, 100))
"""How many accepted baselines of a metric and how many cases are shown: the first that fits."""

TRACES = 1_200_000
"""Characters of JSON for figures over a run's time, of all cases together; the rest is left out."""

ENVIRONMENTS = 200
"""Environments that are listed; the results file has all."""

NAMED = 50
"""Failures that the first section names; the cases below have all. Also tests that were skipped."""


def render(
    results: Results,
    beside: Beside,
    absent: Sequence[Absent] = (),
    *,
    largest: int = LARGEST,
) -> str:
    """Return the page.

    Args:
        results: What was found; its texts may be anybody's.
        beside: What lies beside the results file.
        absent: Planned tests without a result.
        largest: Bytes at most: older history is left out first, then cases that are fine, and the
            page says so.

    Raises:
        EnvironmentFault: Jinja2 or Vega-Lite's script is not installed.
    """
    try:
        import jinja2
        import vl_convert
    except ImportError as error:
        raise EnvironmentFault(
            f"an HTML report needs Jinja2 and vl-convert-python ({error}): "
            "pip install 'pytest-mlperf[html]'"
        ) from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda said: _shown(said) if type(said) is str else said,  # Markup is our own
    )
    template = environment.from_string(_text("page.html.j2"))
    style, script, library = _text("page.css"), _text("page.js"), _library(vl_convert)
    fixed = {
        "policy": _policy(style, script, library),
        "style": style,
        "script": script,
        "library": base64.b64encode(zlib.compress(library.encode(), 9)).decode(),
        "absent": absent,
        "named": NAMED,
        "skipped": results.skipped,
        "notes": beside.notes,
        "label": LABEL,
        **_first_words(results, absent),
    }
    cases, page = grouped(results.cases), ""
    for points, listed in CUTS:
        page = template.render(**fixed, **_of_cases(cases, beside, points, listed))
        if len(page.encode()) <= largest:
            break
    return page


def _first_words(results: Results, absent: Sequence[Absent]) -> dict[str, Any]:
    tone, said = verdict(results, absent)
    return {
        "tone": tone,
        "verdict": said,
        "counts": counts(results),
        "about": about(results),
        "doubts": list(doubts(results)),
    }


def _of_cases(every: Sequence[Grouped], beside: Beside, points: int, listed: int) -> dict[str, Any]:
    """Return what the template writes of cases: the first so many, those that failed first."""
    cases = every[:listed]
    found, subjects = shown(cases, beside)
    figures, (drawn, left_out) = _figures(cases, beside), _case_figures(cases, beside, points)
    return {
        "cases": found,
        "failed": [(place, one) for place, one in enumerate(found) if one.grouped.tone == "fail"],
        "unlisted": len(every) - len(cases),
        "subjects": [(in_words(subject), subject) for subject in subjects[:ENVIRONMENTS]],
        "more_subjects": len(subjects[ENVIRONMENTS:]),
        "workloads": sorted({one.case.workload for one in cases}),
        "accelerators": sorted({one.case.accelerator for one in cases}),
        "data": _json(every_text(_data(cases, figures, drawn), _shown)),
        "figures": [figure for figure in figures if figure.rows],
        "without": [
            *((figure.title, figure.without) for figure in figures if not figure.rows),
            *_without(drawn, left_out),
            *_cut(points),
        ],
    }


# --- figures ---------------------------------------------------------------------------------


def _figures(cases: Sequence[Grouped], beside: Beside) -> list[Figure]:
    return [
        forest(cases),
        heat_map(cases),
        relative(cases),
        accuracy(cases),
        strip(cases),
        spread(cases, beside),
        energy(cases, beside),
        cost(cases),
        spent(cases, beside),
    ]


def _case_figures(
    cases: Sequence[Grouped], beside: Beside, points: int
) -> tuple[list[list[Packed]], int]:
    """Return each case's own figures, and how many cases' figures over time did not fit."""
    drawn, size, left_out = [], 0, 0
    for one in cases:
        figures = figures_of(one, beside, points)
        heavy = [figure for figure in figures if figure["plot"] in {"power", "moments"}]
        size += sum(len(_json(figure)) for figure in heavy)
        if heavy and size > TRACES:
            left_out += 1
            figures = [figure for figure in figures if figure not in heavy]
        drawn.append(figures)
    return drawn, left_out


def _without(drawn: Sequence[Sequence[Packed]], left_out: int) -> list[tuple[str, str]]:
    """Return what no case has, and what would give it."""
    kinds = {figure["plot"] for figures in drawn for figure in figures}
    known = {
        "history": ("History", "It needs a run that could be judged."),
        "latency": (
            "Latencies, now and in the baseline",
            "They need a scenario with queries: Server, Interactive, SingleStream, MultiStream.",
        ),
        "moments": (
            "Latency over time",
            "It needs a Server run of at most 500,000 queries, its folder below the results file.",
        ),
        "power": (
            "Power, clock and temperature",
            "They need GPUs sampled through NVML, and the runs' folders below the results file.",
        ),
    }
    found = [known[kind] for kind in known if kind not in kinds]
    if left_out:
        said = (
            f"Left out for {left_out} cases, those that failed last: the page would be too large."
        )
        found.append(("Figures over the time of a run", said))
    return found


def _cut(points: int) -> list[tuple[str, str]]:
    """Return what is said where histories are shorter than usual."""
    said = f"The newest {points} accepted baselines of each metric: more would not fit the page."
    return [("Older history", said)] if points < CUTS[0][0] else []


def _data(
    cases: Sequence[Grouped], figures: Sequence[Figure], drawn: Sequence[Sequence[Packed]]
) -> dict[str, Any]:
    """Return what the page's script reads."""
    return {
        "cases": [[one.label, one.case.id] for one in cases],
        "figures": {
            figure.name: {
                "fields": figure.fields,
                "rows": figure.rows,
                "columns": figure.columns,
                "spec": figure.spec,
                "runs": figure.runs,
            }
            for figure in figures
            if figure.rows
        },
        "specs": {"history": HISTORY, "latency": LATENCY, "moments": MOMENTS, "power": POWER},
        "drawn": drawn,
    }


# --- parts -----------------------------------------------------------------------------------


def _json(content: Any) -> str:
    """Return JSON that cannot end the script element it stands in, nor begin another."""
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a figure of a file from elsewhere is no number
        return _json(_finite(content))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _shown(text: str) -> str:
    """Return a text as the page shows it: nothing in it turns a line round or hides in it."""
    return visible(text, keep="\n\t\u00a0")


def _finite(content: Any) -> Any:
    """Return content with nothing in the place of what is no number, or endless."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _text(name: str) -> str:
    return files("pytest_mlperf.reports.html").joinpath(name).read_text("utf-8").strip()


@cache
def _library(vl_convert: Any) -> str:
    """Return Vega-Lite, Vega and their expression interpreter as one script."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.strip()


def _policy(style: str, *scripts: str) -> str:
    """Return the page's own limits: its two scripts and its style, and nothing from anywhere."""
    allowed = " ".join(map(_digest, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
