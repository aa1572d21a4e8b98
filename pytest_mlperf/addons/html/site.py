"""Write a results database as a static site: an index page and one page per case."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.html._page import (
    as_json,
    bundled,
    counts,
    page_environment,
    safe_text,
    text_of,
)
from pytest_mlperf.addons.html.model import Tone, tone
from pytest_mlperf.core.history import CaseHistory, LatestVerdict
from pytest_mlperf.core.metrics import title
from pytest_mlperf.core.numbers import change, interval, quantity
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.core.verdict import SEVERITY
from pytest_mlperf.extension import METRICS
from pytest_mlperf.reports.rows import effect
from pytest_mlperf.run.project import git_text
from pytest_mlperf.stores.database import opened, shown_url

MAX_PAGE_CASES = 1000
MAX_SLUG = 120
"""Maximum characters of a page's file name."""

ROWS = 20
"""Maximum number of sessions in a case's table, newest first; the plot has all."""

DRIFTS = 30
"""Maximum number of level changes on the first page, newest first."""

MARK = "pytest-mlperf-site"
"""Name of the file that marks a folder as a site, which may be replaced."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, kw_only=True)
class SiteCase:
    """Hold a case, its newest verdicts, and the histories of the gated metrics in these verdicts.

    Attributes:
        file: File name of the case's HTML page.
    """

    name: str
    file: str
    latest: Sequence[LatestVerdict]
    histories: Sequence[CaseHistory]

    @cached_property
    def worst(self) -> LatestVerdict:
        """Verdict with the most severe outcome."""
        return min(self.latest, key=lambda one: (not one.failed, _severity(one.outcome)))

    @cached_property
    def changes(self) -> list[tuple[CaseHistory, int]]:
        """Changes of level in all histories, newest first: (history, index in its `changes`)."""
        pairs = [(one, place) for one in self.histories for place in range(len(one.changes))]
        return sorted(pairs, key=_started, reverse=True)


def _started(change: tuple[CaseHistory, int]) -> str:
    history, place = change
    return history.points[history.changes[place].index].started


def site_cases(
    latest: Sequence[LatestVerdict], read: Callable[[str], Sequence[CaseHistory]]
) -> list[SiteCase]:
    """Group verdicts by case, failed cases first; `read` returns the histories of a metric."""
    by_case: dict[str, list[LatestVerdict]] = defaultdict(list)
    for one in latest:
        by_case[one.case].append(one)
    gated = {(one.case, one.kind, one.metric) for one in latest}
    histories: dict[str, list[CaseHistory]] = defaultdict(list)
    for metric in sorted({one.metric for one in latest} - {""}):
        for history in read(metric):
            series = history.series
            if (series.case.id, series.kind, metric) in gated:
                histories[series.case.id].append(history)
    slugs = [re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:MAX_SLUG].strip("-") for name in by_case]
    taken = Counter(map(str.lower, slugs))  # some file systems ignore case
    cases = [
        SiteCase(
            name=name,
            file=f"case-{slug}{'' if slug and taken[slug.lower()] == 1 else _digest(name)}.html",
            latest=tests,
            histories=histories[name],
        )
        for (name, tests), slug in zip(by_case.items(), slugs, strict=True)
    ]
    return sorted(
        cases, key=lambda one: (not one.worst.failed, _severity(one.worst.outcome), one.name)
    )


def _digest(name: str) -> str:
    return f"-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _severity(outcome: str) -> int:
    return SEVERITY.index(Outcome(outcome)) if outcome in set(Outcome) else len(SEVERITY)


def _tone(one: LatestVerdict) -> Tone:
    return tone(Outcome(one.outcome) if one.outcome in set(Outcome) else None, failed=one.failed)


def write(url: str, folder: Path) -> int:
    """Write the site of the results database at `url` into a folder; return the number of pages."""
    with opened(url) as store:
        cases = site_cases(store.latest(), lambda metric: store.histories(metric=metric))
    project = Path(git_text("rev-parse", "--show-toplevel").strip()).resolve().name
    commit = git_text("rev-parse", "--short=12", "HEAD").strip() or "outside git"
    made = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
    return write_site(cases, folder, shown_url(url), project, made=made, commit=commit)


def write_site(
    cases: Sequence[SiteCase], folder: Path, place: str, project: str = "", **about: str
) -> int:
    """Write the site into a folder, replacing an older one; return its number of pages.

    The pages show `project`, `place` (the address of the store) and the facts in `about`.
    Raises MlperfError if the folder contains files of another origin or cannot be written.
    """
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        text = "is not empty, and was not written by --format site; name another folder"
        raise MlperfError(f"{folder} {text}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".site-", dir=folder.parent) as temporary:
            made = Path(temporary) / "site"
            made.mkdir(mode=0o755)
            # While one page is written the next is made: on many disks a new file takes as long.
            with ThreadPoolExecutor(max_workers=1) as writer:
                under_way = writer.submit(int)
                for page in _pages(cases, {"project": project, "about": {**about, "store": place}}):
                    under_way.result()
                    under_way = writer.submit(_write, made, page)
                under_way.result()
            count = len(list(made.glob("*.html")))
            if folder.exists():
                folder.replace(Path(temporary) / "older")
            made.replace(folder)
    except OSError as error:
        raise MlperfError(f"{folder} cannot be written: {error.strerror}") from None
    return count


def _write(folder: Path, page: tuple[str, str]) -> int:
    name, content = page
    return (folder / name).write_text(content, "utf-8")


def _pages(cases: Sequence[SiteCase], about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    environment = page_environment()
    index = environment.from_string(text_of("site.html.j2"))
    page = environment.from_string(text_of("site_case.html.j2"))
    common = {"policy": POLICY, "label": UNVERIFIED_LABEL, **about}
    yield MARK, "made by pytest-mlperf report --format site; replaced by the next one\n"
    yield ".nojekyll", ""
    yield "site.css", f"{text_of('page.css')}\n{text_of('site.css')}\n"
    yield "site.js", f"{text_of('site.js')}\n"
    yield "vega.js", bundled()
    parts = [cases[n : n + MAX_PAGE_CASES] for n in range(0, len(cases), MAX_PAGE_CASES)] or [[]]
    names = ["index.html", *(f"index-{n}.html" for n in range(2, len(parts) + 1))]
    for name, part in zip(names, parts, strict=True):
        first = _first_page(cases) if name == names[0] else {}
        rows = [_row(one) for one in part]
        yield name, index.render(**common, **first, rows=rows, pages=names, page=name)
    for one in cases:
        yield one.file, page.render(**common, **_of_case(one))


def _first_page(cases: Sequence[SiteCase]) -> dict[str, Any]:
    drifts = sorted(
        ((one, change) for one in cases for change in one.changes),
        key=lambda drift: _started(drift[1]),
        reverse=True,
    )
    machines: dict[str, set[str]] = defaultdict(set)
    identities: dict[str, Mapping[str, Any]] = {}
    for one in cases:
        for history in one.histories:
            machines[history.series.machine].add(one.name)
            identities[history.series.machine] = history.series.identity
    return {
        "first": True,
        "counts": counts(one.worst.outcome for one in cases),
        "drifts": [(one.name, one.file, _drift(*change)) for one, change in drifts[:DRIFTS]],
        "more_drifts": max(0, len(drifts) - DRIFTS),
        "machines": [
            (name, _in_words(identities[name]), len(machines[name])) for name in sorted(machines)
        ],
    }


def _in_words(identity: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in identity.items() if value is not None)


def _drift(history: CaseHistory, place: int) -> dict[str, Any]:
    one = history.changes[place]
    worse = history.is_worse(one.change)
    point = history.points[one.index]
    engines = list(dict.fromkeys(history.versions[one.index - 1 : one.index + 1]))
    return {
        "tone": {True: "fail", False: "good", None: "note"}[worse],
        "word": {True: "worse", False: "better", None: "changed"}[worse],
        "text": f"{title(history.series.metric)} {change(one.change)} "
        f"({interval(one.low, one.high)})",
        "where": f"{point.started[:10]}, commit {(point.commit or 'unknown')[:12]}, "
        f"{' → '.join(engines)}",
    }


def _row(one: SiteCase) -> dict[str, Any]:
    newest = max(one.histories, key=lambda each: each.points[-1].started, default=None)
    drift = _drift(*one.changes[0]) if one.changes else None
    point = newest.points[-1] if newest else None
    share = point.value / point.baseline - 1 if point and point.baseline else None
    return {
        "case": one,
        "tone": _tone(one.worst),
        "day": one.worst.started[:10],
        "value": _value(newest, newest.points[-1].value) if newest else "",
        "share": share,
        "change": effect(newest.series.metric, share) if newest and share is not None else "",
        "line": sparkline(newest.values, 24) if newest and len(newest.points) > 1 else "",
        "drift": drift,
    }


def _value(history: CaseHistory, value: float) -> str:
    metric = history.series.metric
    return f"{quantity(metric, value)} {title(metric)}"


def _of_case(one: SiteCase) -> dict[str, Any]:
    drawn = [_drawn(history) for history in one.histories]
    return {
        "case": one,
        "tests": [(_tone(test), test) for test in one.latest],
        "histories": [
            (
                history.series,
                title(history.series.metric),
                [_drift(history, place) for place in reversed(range(len(history.changes)))],
                _table(history),
            )
            for history in one.histories
        ],
        "identities": {h.series.machine: _in_words(h.series.identity) for h in one.histories},
        "data": as_json(drawn),
    }


def _drawn(history: CaseHistory) -> dict[str, Any]:
    metric = METRICS[history.series.metric]
    scale, unit = (1e3, "milliseconds") if metric.unit == "s" else (1.0, metric.title)
    points = history.points
    bases = {base: base and float(f"{scale * base:.5g}") for base in {p.baseline for p in points}}
    return {
        "unit": unit,
        "at": [_moment(point.started) for point in points],
        "value": [float(f"{scale * point.value:.5g}") for point in points],
        "base": [bases[point.baseline] for point in points],
        "accepted": [place for place, mark in enumerate(history.accepted) if mark],
        "changed": [one.index for one in history.changes],
        "failed": [place for place, point in enumerate(history.points) if point.failed],
    }


# The time of one session stands in the histories of many cases.
_moment = lru_cache(maxsize=4096)(safe_text)


def _table(history: CaseHistory) -> tuple[list[str], list[list[str]]]:
    changed = {one.index: change(one.change) for one in history.changes}
    accepted, versions = history.accepted, history.versions
    rows = []
    for place in range(len(history.points) - 1, max(-1, len(history.points) - 1 - ROWS), -1):
        point = history.points[place]
        marks = [f"{changed[place]} from here on"] if place in changed else []
        marks += ["baseline accepted"] if accepted[place] else []
        rows.append(
            [
                point.started[:16].replace("T", " "),
                (point.commit or "")[:12],
                versions[place],
                quantity(history.series.metric, point.value),
                point.outcome,
                "; ".join(marks),
            ]
        )
    return ["session", "commit", "engine", title(history.series.metric), "verdict", "mark"], rows


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as at most `width` block characters; neighbouring values are averaged to fit."""
    each = math.ceil(len(values) / width)
    parts = [values[begin : begin + each] for begin in range(0, len(values), each)]
    drawn = list(map(fmean, parts))
    low, high = min(drawn), max(drawn)
    reach = (high - low) or 1.0
    return "".join(BLOCKS[min(7, int(8 * (value - low) / reach))] for value in drawn)
