"""Assemble the HTML page: one file that loads nothing and runs only its own two scripts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from itertools import islice
from typing import Any

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.html._cases import common_facts, figures_of, template_cases
from pytest_mlperf.addons.html._figures import (
    accuracy,
    cost,
    duration_plot,
    energy,
    forest,
    heat_map,
    precisions,
    relative,
    spread,
    strip,
)
from pytest_mlperf.addons.html.model import Figure, Grouped, Packed, RunFiles, Tone, grouped, tone
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.results import UNVERIFIED_LABEL, Absent
from pytest_mlperf.core.untrusted_text import every_text
from pytest_mlperf.core.verdict import SEVERITY
from pytest_mlperf.extension import Kind, Results, duration, plural, sentence, visible, write_whole
from pytest_mlperf.reports.failures import failure_groups
from pytest_mlperf.reports.rows import facts_of
from pytest_mlperf.reports.terminal.advice import machine_noise_notes, session_verdict
from pytest_mlperf.reports.terminal.precisions import precision_section
from pytest_mlperf.stores.digests import cache_folder


def verdict(results: Results, absent: Sequence[Absent] = ()) -> tuple[Tone, str]:
    """Return the session's verdict as text, with its tone ("fail", "open" or "good")."""
    failed, text = session_verdict(results, absent)
    tones: dict[bool | None, Tone] = {True: "fail", None: "open", False: "good"}
    return tones[failed], f"{text[0].upper()}{text[1:]}"


def counts(outcomes: Iterable[str]) -> list[tuple[Tone, str, int]]:
    """Return tone, name and number of tests of each outcome, the worst outcome first."""
    counted = Counter(outcomes)
    return [(tone(word), str(word), counted[word]) for word in SEVERITY if counted[word]]


def session_facts(results: Results) -> list[tuple[str, str]]:
    """Return facts about the session as (name, value): start, duration, commit, versions, …."""
    profiles = " and ".join(sorted({result.profile for result in results.cases}))
    rounds = " and ".join(sorted({result.round for result in results.cases}))
    verdicts = [result.verdict for result in results.cases]
    runs = len({run.folder for one in verdicts for run in (*one.runs, *one.invalid_runs)})
    turns = sum(one.interleaved.runs for one in verdicts if one.interleaved)
    made = plural(runs + turns, "run") + (f", {turns} of them interleaved" if turns else "")
    facts = [
        ("started", f"{results.started[:16].replace('T', ' ')} UTC"),
        ("took", f"{duration(results.seconds)}, {made}"),
        ("commit", results.commit or "outside git"),
        ("profile", profiles),
        ("MLPerf round", rounds),
        ("session", results.run),
        *results.versions.items(),
    ]
    return [(name, said) for name, said in facts if said]


def credibility_notes(results: Results) -> Iterator[tuple[Tone, str]]:
    """Yield (tone, sentence) on facts that weaken or support the session's verdicts."""
    cases = results.cases
    for share in sorted({result.handicap for result in cases if result.handicap}):
        text = f"Slowed on purpose (--mlperf-handicap {100 * share:g} %): not for a baseline."
        yield "fail", text
    if any(result.pretended for result in cases):
        yield "fail", "The accelerator was only pretended: all figures are of another device."
    invalid = sum(result.verdict.outcome is Outcome.INVALID for result in cases)
    if invalid:
        yield "fail", f"{plural(invalid, 'test')} INVALID and not judged: each test says why."
    if any(result.profile == "quick" for result in cases):
        text = "shorter runs than MLPerf requires, compared with quick baselines only."
        yield "open", f"Profile quick: {text}"
    yield from _gates(results)
    yield from _proof(results)
    yield from _machine(results)
    if results.pairs:
        text = f"All {results.pairs} metrics of all cases were judged jointly"
        yield "good", f"{text}: the error rate holds for the whole session."
    for text in machine_noise_notes(results):
        yield "open", f"{text[0].upper()}{text[1:]}."
    yield from _not_run(results)


def _gates(results: Results) -> Iterator[tuple[Tone, str]]:
    gates = [r.verdict.gate for r in results.cases if r.verdict.kind == Kind.ACCURACY]
    asked = [gate for gate in gates if gate is not None]
    undecided = sum(not gate.evaluated for gate in asked)
    if undecided:
        text = f"{undecided} of {plural(len(asked), 'accuracy gate')} not decided"
        yield (
            "open",
            f"{text}: each says how many samples it scored, or that no gate is known.",
        )


def _proof(results: Results) -> Iterator[tuple[Tone, str]]:
    gated = [
        m for r in results.cases for m in r.verdict.metrics if m.limit and m.baseline.detectable
    ]
    weak = sum(m.baseline.detectable > m.limit for m in gated if m.baseline.detectable and m.limit)
    if weak:
        text = f"The baselines are too noisy to prove {weak} of {plural(len(gated), 'limit')}"
        yield "open", f"{text}: record more runs, or widen the limits."
    elif gated:
        yield "good", f"The baselines can prove all limits ({len(gated)})."


def _not_run(results: Results) -> Iterator[tuple[Tone, str]]:
    missing = sum(results.deselected.values())
    if missing:
        named = ", ".join(f"{count} for {name}" for name, count in results.deselected.items())
        text = f"{plural(missing, 'test')} did not run, because this machine lacks the accelerator"
        yield "open", f"{text}: {named}."
    if results.skipped:
        yield "open", f"{plural(len(results.skipped), 'test')} skipped: listed below."


def _machine(results: Results) -> Iterator[tuple[Tone, str]]:
    compared = [result for result in results.cases if result.verdict.machine]
    steady = [result for result in compared if result.verdict.steady]
    if steady:
        worst = max(steady, key=lambda r: max(one.deviations for one in r.verdict.machine))
        seen = facts_of(worst)["machine"]
        yield "good", f"The machine explains none of {plural(len(steady), 'change')}; {seen}."
    if off := sum(result.verdict.steady is False for result in compared):
        yield "fail", f"The machine itself was different for {plural(off, 'change')}."


MAX_HTML_BYTES = 5 * 10**6
CUTS = ((200, 10_000), (50, 10_000), (10, 2_000), (10, 1_000), (5, 400), (2, 100))
"""Maximum baselines per metric, and maximum cases; the first pair that fits the size is used."""

TRACES = 1_200_000
"""Maximum characters of JSON for all plots over a run's time; further plots are left out."""

ENVIRONMENTS = 200
"""Maximum number of listed environments; the results file has all."""

MAX_LISTED_FAILURES = 10
"""Maximum failures per cause that the first section names; the cases below have all."""

MAX_LISTED_TESTS = 50
"""Maximum number of named skipped and absent tests."""


def render(
    results: Results,
    run_files: RunFiles,
    absent: Sequence[Absent] = (),
    *,
    max_bytes: int = MAX_HTML_BYTES,
) -> str:
    """Return the HTML page, with at most `max_bytes` bytes.

    If it would be larger, older history is omitted first, then passed cases; the page says so.
    """
    failures = failure_groups(results, run_files.records)
    causes = {
        failure.result.test: [cause.says for cause in failure.causes]
        for group in failures
        for failure in group.failures
    }
    template = page_environment().from_string(text_of("page.html.j2"))
    style, library = text_of("page.css"), bundled()
    script = "\n".join(map(text_of, ("plots.js", "page.js")))
    fixed = {
        "policy": _policy(style, script, library),
        "style": style,
        "script": script,
        "library": base64.b64encode(zlib.compress(library.encode(), 9)).decode(),
        "absent": absent,
        "named": MAX_LISTED_TESTS,
        "most": MAX_LISTED_FAILURES,
        "skipped": results.skipped,
        "notes": run_files.notes,
        "label": UNVERIFIED_LABEL,
        "headline": verdict(results, absent),
        "counts": counts(result.verdict.outcome for result in results.cases),
        "about": session_facts(results),
        "doubts": list(credibility_notes(results)),
        "failures": failures,
    }
    cases, page = grouped(results.cases), ""
    for points, listed in CUTS:
        page = template.render(**fixed, **_case_data(cases, causes, run_files, points, listed))
        if len(page.encode()) <= max_bytes:
            break
    return page


def _case_data(
    groups: Sequence[Grouped],
    causes: Mapping[str, Sequence[str]],
    run_files: RunFiles,
    max_points: int,
    max_cases: int,
) -> dict[str, Any]:
    """Return template data of the first `max_cases` cases, with `max_points` per plot over time."""
    cases = groups[:max_cases]
    sections, environments = template_cases(cases, causes)
    drawn, left_out = _case_figures(cases, run_files, max_points)
    figures = [
        *(forest(cases), heat_map(cases), relative(cases), accuracy(cases), precisions(cases)),
        *(strip(cases), spread(cases, run_files), energy(cases, run_files), cost(cases)),
        duration_plot(cases, run_files),
    ]
    return {
        "cases": sections,
        "places": {
            r.test: (place, group) for place, group in enumerate(cases) for r in group.results
        },
        "precisions": _precisions(cases),
        "unlisted": len(groups) - len(cases),
        "environments": [
            (machine, len(subjects), common_facts(subjects))
            for machine, subjects in islice(environments.items(), ENVIRONMENTS)
        ],
        "more_environments": max(0, len(environments) - ENVIRONMENTS),
        "workloads": sorted({group.case.workload for group in cases}),
        "accelerators": sorted({group.case.accelerator for group in cases}),
        "data": as_json(every_text(_data(cases, figures, drawn), safe_text)),
        "figures": [figure for figure in figures if figure.rows],
        "without": [(figure.title, figure.without) for figure in figures if not figure.rows],
        "kinds": {figure["plot"] for own in drawn for figure in own},
        "left_out": left_out,
        "points": max_points if max_points < CUTS[0][0] else 0,
    }


def _precisions(cases: Sequence[Grouped]) -> tuple[list[tuple[Any, ...]], list[str]]:
    tables, remarks = precision_section((r for group in cases for r in group.results), whole=True)
    return [(*table.filled, table.left) for table in tables], remarks


def _case_figures(
    cases: Sequence[Grouped], beside: RunFiles, points: int
) -> tuple[list[list[Packed]], int]:
    drawn, size, left_out = [], 0, 0
    for group in cases:
        figures = figures_of(group, beside, points)
        heavy = [figure for figure in figures if figure["plot"] in {"power", "moments"}]
        size += sum(len(as_json(figure)) for figure in heavy)
        if heavy and size > TRACES:
            left_out += 1
            figures = [figure for figure in figures if figure not in heavy]
        drawn.append(figures)
    return drawn, left_out


def _data(
    cases: Sequence[Grouped], figures: Sequence[Figure], drawn: Sequence[Sequence[Packed]]
) -> dict[str, Any]:
    return {
        "cases": [[group.label, group.case.id] for group in cases],
        "figures": {
            figure.name: {
                "fields": list(figure.rows[0]),
                "rows": [list(row.values()) for row in figure.rows],
                "runs": figure.runs,
            }
            for figure in figures
            if figure.rows
        },
        "drawn": drawn,
    }


def page_environment() -> Any:
    """Return a Jinja environment that escapes all text and removes control characters."""
    import jinja2

    return jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup, which is a subclass of str, is ours.
        finalize=lambda v: safe_text(sentence(v)) if type(v) in {str, Note} else v,
    )


def as_json(content: Any) -> str:
    """Return JSON that is safe in a <script> element: it cannot end it or start another one."""
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a figure of a file from elsewhere is no number
        return as_json(_finite(content))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def safe_text(text: str) -> str:
    """Escape control characters, bidirectional controls and invisible characters in a text."""
    return visible(text, keep="\n\t\u00a0")


def _finite(content: Any) -> Any:
    """Replace NaN and infinite numbers by None, in nested lists and dicts."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def text_of(name: str) -> str:
    """Return the text of a template, style or script of this package."""
    return files("pytest_mlperf.addons.html").joinpath(name).read_text("utf-8").strip()


@cache
def bundled() -> str:
    """Return Vega, Vega-Lite and their interpreter as one script, cached by library version."""
    path = None
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # not there, no home, no text
        path = cache_folder() / f"vega-{version('vl-convert-python')}.js"
        if text := path.read_text("utf-8"):
            return text
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").strip()
    if path:
        with contextlib.suppress(MlperfError):
            write_whole(path, script)
    return script


def _policy(style: str, *scripts: str) -> str:
    """Return the Content-Security-Policy that allows only this style and these scripts."""
    allowed = " ".join(map(_digest, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
