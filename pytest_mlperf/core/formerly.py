"""A baseline that does not apply to a machine: what it applied to, and what changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mlperf.core.baseline import Baseline, Difference, Property, Record, nearest


@dataclass(frozen=True, kw_only=True)
class Formerly:
    """The nearest baseline, where none is of this machine.

    Attributes:
        date: When it was accepted, ISO 8601.
        differences: What it applied to, and what is here instead; at least one.
    """

    date: str
    differences: tuple[Difference, ...]

    @property
    def in_words(self) -> str:
        """All that changed: "baseline of 2026-11-20 applied to power_limit_w 700, here 500"."""
        return f"{self._begin} {'; '.join(map(_changed, self.differences))}"

    @property
    def brief(self) -> str:
        """The first of what changed, for a first line."""
        more = len(self.differences) - 1
        return f"{self._begin} {_changed(self.differences[0])}" + (f" and {more} more" * bool(more))

    @property
    def _begin(self) -> str:
        return f"baseline of {self.date} applied to"


def formerly(baseline: Baseline, identity: Mapping[str, Property]) -> Formerly | None:
    """Return the record of a file that is nearest to a machine, and what differs; None: no record.

    Args:
        baseline: The file.
        identity: This machine's.
    """
    found = nearest(baseline, identity)
    return Formerly(date=accepted(found[0]), differences=tuple(found[1])) if found else None


def accepted(record: Record) -> str:
    """Return the day on which a record was accepted last."""
    return record.history[-1].date if record.history else record.runs[-1].started[:10]


def _changed(difference: Difference) -> str:
    return f"{difference.name} {_shown(difference.theirs)}, here {_shown(difference.ours)}"


def _shown(value: Property) -> str:
    return "unknown" if value is None else str(value)
