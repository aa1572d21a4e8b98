"""The precision table as text, Markdown or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

from pytest_mlperf.core.numbers import points, quantity, times
from pytest_mlperf.core.results import LABEL, Results
from pytest_mlperf.reports.cells import title
from pytest_mlperf.reports.layout import Row, fold, paragraphs, plural, table
from pytest_mlperf.reports.precisions_model import Block, Entry, Score

SCHEMA = 1
"""Version of the JSON."""

LEFT = ("entry", "metric", "accuracy")

CHANGE = (
    "points: the score's change against the reference; with an interval: of the same samples, by "
    "the paired rule"
)
SPEED = (
    "speed: how many times better than the reference in the same session; it is shown and never "
    "judged: [[pairs]] tests a claim about it"
)
SPREAD = "spread: the worst and the best quotient of two runs; no confidence goes with it"


# --- what both forms show --------------------------------------------------------------------


def heading(block: Block) -> str:
    """Return what a block is about, with what its entries are compared with."""
    profile = "" if block.profile == "quick" else f", {block.profile}"
    against = f", against {block.against}" if len(block.entries) > 1 else ""
    return f"{block.workload} {block.scenario} on {block.accelerator}{profile}{against}"


def columns(block: Block) -> list[str]:
    """Return the names of a block's columns in order."""
    scores = ["entry", "metric", "score", "needed", "points", "interval", "samples", "accuracy"]
    return [*scores, title(block.metric), "speed", "spread"]


def rows(block: Block) -> Iterator[Row]:
    """Yield a row per score, at least one per entry; what is unknown is left out."""
    for entry in block.entries:
        own = {score.outcome for score in entry.scores}
        whole = str(entry.accuracy or "") if entry.accuracy not in own else ""
        first: Row = {"entry": block.label(entry), **_speed_cells(entry, block)}
        for index, score in enumerate(entry.scores or (None,)):
            word = whole if whole and not index else str(score.outcome or "") if score else ""
            cells = _score_cells(score, entry) if score else {}
            yield {**cells, "accuracy": word, **({} if index else first)}


def _score_cells(score: Score, entry: Entry) -> Row:
    part = entry.samples is not None and entry.total is not None and entry.samples < entry.total
    bounds = score.low is not None and score.high is not None
    return {
        "metric": title(score.metric),
        "score": f"{score.value:.3f}",
        "needed": "" if score.needed is None else f"{score.needed:.3f}",
        "points": "" if score.change is None else points(score.change),
        "interval": f"{points(score.low or 0.0)} to {points(score.high or 0.0)}" if bounds else "",
        "samples": f"{entry.samples} of {entry.total}" if part else "",
    }


def _speed_cells(entry: Entry, block: Block) -> Row:
    speed = entry.speed
    if speed is None:
        return {title(block.metric): str(entry.performance or "")}
    cells = {title(block.metric): quantity(speed.metric, speed.value)}
    if speed.ratio is not None and len(block.entries) > 1:
        cells["speed"] = times(speed.ratio)
    if speed.low is not None and speed.high is not None:
        cells["spread"] = f"{times(speed.low)} to {times(speed.high)}"
    return cells


def notes(blocks: Sequence[Block]) -> list[str]:
    """Return what is to be known about entries, each with its name."""
    return [
        f"{block.workload}-{block.scenario}-{entry.name}-{block.accelerator}: {note}"
        for block in blocks
        for entry in block.entries
        for note in entry.notes
    ]


def footnotes(blocks: Sequence[Block]) -> list[str]:
    """Return what the columns mean that are there."""
    entries = [entry for block in blocks for entry in block.entries]
    speeds = [entry.speed for entry in entries if entry.speed]
    changes = [score.change for entry in entries for score in entry.scores]
    several = any(len(block.entries) > 1 for block in blocks)
    shown = {
        CHANGE: any(change is not None for change in changes),
        SPEED: several and any(speed.ratio is not None for speed in speeds),
        SPREAD: any(speed.low is not None for speed in speeds),
    }
    return [text for text, needed in shown.items() if needed]


def origin(results: Results) -> str:
    """Return when, from what and on what a session measured."""
    when = results.started[:16].replace("T", " ")
    commit = f"commit {results.commit[:12]}" if results.commit else "no commit"
    return f"{when} UTC, {commit}, {'; '.join(hardware(results)) or 'hardware unknown'}"


def hardware(results: Results) -> list[str]:
    """Return each machine that a session measured on, in words."""
    found: dict[str, None] = {}
    for result in results.cases:
        subject = result.verdict.subject
        identity = subject.identity if subject else {}
        if gpu := identity.get("gpu"):
            count = identity.get("gpus") or 1
            found[f"{count} x {gpu}" if count != 1 else str(gpu)] = None
        elif cpu := identity.get("cpu"):
            cores = identity.get("cores")
            counted = f", {plural(cores, 'core')}" if isinstance(cores, int) else ""
            if isinstance(cores, float):
                counted = f", {cores:g} cores"
            found[f"{cpu}{counted}"] = None
    return list(found)


# --- text ------------------------------------------------------------------------------------


def text(sessions: Sequence[tuple[Results, Sequence[Block]]], width: int) -> list[str]:
    """Return the table: sessions one below the other, each with its blocks.

    Args:
        sessions: Each session with its blocks.
        width: Columns.
    """
    lines: list[str] = []
    for results, blocks in sessions:
        for block in blocks:
            cells = list(rows(block))
            lines += fold(heading(block), width, rest="  ")
            spare = ["needed", "samples", "spread", "interval"]
            lines += table(columns(block), cells, width, left=LEFT, spare=spare)
            lines.append("")
        lines += paragraphs("measured", [origin(results)], width)
        lines += paragraphs("note", notes(blocks), width)
        lines.append("")
    every = [block for _, blocks in sessions for block in blocks]
    for footnote in footnotes(every):
        lines += fold(footnote, width, rest="  ")
    return [*lines, LABEL]


# --- Markdown --------------------------------------------------------------------------------


def markdown(sessions: Sequence[tuple[Results, Sequence[Block]]]) -> list[str]:
    """Return the table in GitHub's Markdown, with every column that holds something."""
    lines: list[str] = []
    for results, blocks in sessions:
        for block in blocks:
            lines += [f"**{_escaped(heading(block))}**", "", *_markdown_table(block), ""]
        lines += [f"Measured {_escaped(origin(results))}.", ""]
        lines += [f"- {_escaped(note)}" for note in notes(blocks)]
        lines += [""] if notes(blocks) else []
    every = [block for _, blocks in sessions for block in blocks]
    lines += [f"- {_escaped(footnote)}" for footnote in footnotes(every)]
    return [*lines, "", LABEL]


def _markdown_table(block: Block) -> list[str]:
    cells = list(rows(block))
    kept = [name for name in columns(block) if any(row.get(name) for row in cells)]
    lines = [kept, [":--" if name in LEFT else "--:" for name in kept]]
    lines += [[_escaped(row.get(name, "")) for name in kept] for row in cells]
    return [f"| {' | '.join(line)} |" for line in lines]


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it stands."""
    for sign in "\\|*_`<[":
        text = text.replace(sign, f"\\{sign}")
    return text


# --- JSON ------------------------------------------------------------------------------------


def document(sessions: Sequence[tuple[Results, Sequence[Block]]]) -> str:
    """Return the table as JSON; what is unknown is null."""
    content = {
        "schema": SCHEMA,
        "kind": "pytest-mlperf precisions",
        "sessions": [
            {
                "run": results.run,
                "started": results.started,
                "commit": results.commit,
                "hardware": hardware(results),
                "blocks": [_block(block) for block in blocks],
            }
            for results, blocks in sessions
        ],
        "label": LABEL,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _block(block: Block) -> dict[str, object]:
    content = dataclasses.asdict(block)
    return {**content, "reference": block.reference.name}
