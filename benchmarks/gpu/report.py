"""One JSON and one Markdown file of all that was found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.setting import SIMULATED
from pytest_mlperf.core.energy import Source
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.stores import atomic

SCHEMA = 1


@dataclass(kw_only=True)
class Report:
    """What is known so far.

    Attributes:
        date: ISO date, UTC.
        command: As it was called.
        hardware: In words.
        accelerator: The suite's word for the GPU's class.
        simulated: Nothing here is a GPU's.
        minutes: What was allowed.
        identity: Of GPU and CPU.
        versions: Of Python and libraries.
        driver: Version, once a part has asked.
        commit: Of this project; None: not known.
        parts: By name: "status", "seconds" and, where there is any, "answer".
    """

    date: str
    command: str
    hardware: str
    accelerator: str
    simulated: bool
    minutes: float
    identity: Mapping[str, Any]
    versions: Mapping[str, str]
    driver: str | None = None
    commit: str | None = None
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Name of both files without their suffix."""
        simulated = "-simulated" if self.simulated else ""
        return f"gpu-{self.accelerator}-{self.date}{simulated}"

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files, each whole or not at all; return their paths."""
        paths = folder / f"{self.stem}.json", folder / f"{self.stem}.md"
        text = json.dumps(self.as_json(), ensure_ascii=False, allow_nan=False, indent=1)
        atomic.write_text(paths[0], text + "\n")
        atomic.write_text(paths[1], "\n".join(self.markdown()) + "\n")
        return paths

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "schema": SCHEMA,
            "simulated": SIMULATED if self.simulated else None,
            "labels": [Source.NVML.label, UNVERIFIED_LABEL],
            "date": self.date,
            "command": self.command,
            "commit": self.commit,
            "hardware": self.hardware,
            "identity": dict(self.identity),
            "driver": self.driver,
            "versions": dict(self.versions),
            "minutes": self.minutes,
            "parts": {name: self.parts[name] for name in order(self.parts)},
        }

    def markdown(self) -> Iterator[str]:
        """Yield the lines of the Markdown file."""
        yield f"# {self.hardware}, {self.date}"
        yield ""
        if self.simulated:
            yield f"**{SIMULATED}**"
            yield ""
        yield f"- date: {self.date}, commit {self.commit or 'unknown'}"
        yield f"- hardware: {self.hardware}"
        yield f"- driver: {self.driver or 'not asked'}"
        named = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        yield f"- versions: {named}"
        yield f"- command: `{self.command}`"
        yield f"- {Source.NVML.label}. {UNVERIFIED_LABEL}"
        yield ""
        yield from table(("part", "status", "seconds"), self._statuses())
        for part in PARTS:
            yield from section(part.title, self.parts.get(part.name))

    def _statuses(self) -> list[Sequence[str]]:
        found: list[Sequence[str]] = []
        for part in PARTS:
            about = self.parts.get(part.name, {"status": "not run yet", "seconds": 0.0})
            found.append((part.title, about["status"], f"{about['seconds']:.1f}"))
        total = sum(about["seconds"] for about in self.parts.values())
        found.append((f"all, of {self.minutes:g} min allowed", "", f"{total:.1f}"))
        return found


def order(parts: Mapping[str, Any]) -> list[str]:
    """Return the names of parts in the order of the tables."""
    return [part.name for part in PARTS if part.name in parts]


def section(title: str, about: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a part's heading, tables and notes."""
    yield ""
    yield f"## {title}"
    if about is None or about["status"] != "ok":
        yield ""
        yield about["status"] if about else "not run yet"
    answer = (about or {}).get("answer") or {"tables": [], "notes": []}
    for each in answer["tables"]:
        yield ""
        yield f"### {each['title']}"
        yield ""
        yield from table(each["columns"], each["rows"])
    for note in answer["notes"]:
        yield ""
        yield note


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table."""
    yield _row(columns)
    yield _row(["---"] * len(columns))
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
