"""Define the points of a case's trend, one per accepted baseline, and their version labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.baseline import BaselineRun, Property, differences
from pytest_mlperf.core.case import Case

_VERSION = re.compile(r"v?\d+(\.\d+)+\S*")


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """Hold one accepted baseline of a case.

    Attributes:
        commit: Commit that added this baseline, "not committed", or "" if git lacks the commit.
        fingerprint: Engine, versions, weights, options, data; empty if unknown.
        rate: Offered rate [1/s]; None if the scenario has none.
        means: Geometric means by metric, SI units.
    """

    date: str
    commit: str
    reason: str
    case: Case
    profile: str
    identity: Mapping[str, Property]
    fingerprint: Mapping[str, str]
    rate: float | None
    means: Mapping[str, float]
    runs: tuple[BaselineRun, ...] = ()

    @property
    def division(self) -> str:
        """MLPerf division; "closed" if the fingerprint names none."""
        return self.fingerprint.get("division", "closed")


# --- versions --------------------------------------------------------------------------------


def version_labels(points: Sequence[TrendPoint]) -> list[str]:
    """Return a label per point: the versions that differ, or the engine's version if none does."""
    return engine_versions([(point.fingerprint, point.case.engine) for point in points])


def engine_versions(engines: Sequence[tuple[Mapping[str, str], str]]) -> list[str]:
    """Return a text such as "onnxruntime 1.20.1" for each engine: (fingerprint, engine name).

    A text contains each version that differs between the fingerprints or, if none differs, the
    engine's version. It is "not known" if the fingerprint is empty.
    """
    keys = dict.fromkeys(
        key
        for fingerprint, _ in engines
        for key, value in fingerprint.items()
        if key.startswith("engine.") and _VERSION.fullmatch(value)
    )
    recorded = [fingerprint for fingerprint, _ in engines if fingerprint]
    moving = [key for key in keys if len({one.get(key) for one in recorded}) > 1]
    selected = moving or [next((k for k in keys if k == "engine.version"), next(iter(keys), ""))]
    return [_version(*one, selected) if one[0] else "not known" for one in engines]


def _version(fingerprint: Mapping[str, str], name: str, keys: Sequence[str]) -> str:
    engine = fingerprint.get("engine", name).rpartition(":")[2]
    parts = []
    for key in filter(None, keys):
        part = engine if key == "engine.version" else key.removeprefix("engine.")
        if key in fingerprint:
            parts.append(f"{part} {fingerprint[key]}")
    return ", ".join(parts) or engine


def distinct(points: Sequence[TrendPoint]) -> list[TrendPoint]:
    """Drop baselines whose runs a later baseline contains; return the others, oldest first."""
    kept: list[TrendPoint] = []
    for point in points:
        runs = _runs(point)
        shared = [i for i, one in enumerate(kept) if runs & _runs(one) and not _apart(one, point)]
        if not shared:
            kept.append(point)
        elif runs > _runs(kept[shared[-1]]):
            kept[shared[-1]] = point
    return kept


def _apart(a: TrendPoint, b: TrendPoint) -> bool:
    same = a.case.accelerator == b.case.accelerator and a.profile == b.profile
    return not same or bool(differences(a.identity, b.identity))


def _runs(point: TrendPoint) -> set[tuple[object, ...]]:
    return {
        (run.session, run.started, run.samples, tuple(sorted(run.metrics.items())))
        for run in point.runs
    }
