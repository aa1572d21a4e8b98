"""Check whether other processes' load explains missed latency limits and changed results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.contention import busiest, load_seen
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.core.rulings.ruling import load_share, max_log_loss
from pytest_mlperf.judge.inputs import Direction


def is_loaded(runs: Sequence[Run | BaselineRun], tolerated: float) -> bool:
    """Check whether other processes may have slowed a run by more than the share `tolerated`."""
    return any((load_share(run) or 0.0) > tolerated for run in runs)


def explains_miss(run: Run, limits: Mapping[str, float], tolerated: float) -> bool:
    """Check whether other processes' load may explain that a run missed its latency limits [s].

    If LoadGen's early stopping failed the run, any such load, or a late client, may explain it.
    """
    lost = {name: max_log_loss(run, name, tolerated) for name in limits if name in run.metrics}
    return any(lost.values()) and all(
        math.log(run.metrics[name] / limits[name]) <= lost[name] for name in lost
    )


def explains_gap(
    a: Run, b: Run, metrics: Collection[str], tolerated: float, least: float = 1.0
) -> bool:
    """Check whether load explains why a metric's ratio a/b (above 1: a is better) is not `least`.

    Load explains a lower ratio if a's share exceeds b's by over `tolerated`, and vice versa.
    """
    more = (load_share(a) or 0.0) - (load_share(b) or 0.0)
    if abs(more) <= tolerated:
        return False
    both = [m for m in metrics if a.metrics.get(m, 0.0) > 0 and b.metrics.get(m, 0.0) > 0]
    better = [
        a.metrics[m] / b.metrics[m]
        if METRICS[m].direction is Direction.HIGHER
        else b.metrics[m] / a.metrics[m]
        for m in both
    ]
    return any((ratio - least) * more < 0 for ratio in better)


def load_note(runs: Sequence[Run]) -> Note:
    """Return a note on the highest load by other processes; if there is none, on late requests."""
    seen = [
        run.load.contention for run in runs if run.load.contention and run.load.contention.share
    ]
    if not seen:
        return Note.of("client_late")
    busiest = max(seen, key=lambda load: load.share or 0.0)
    return Note.of("busy", share=busiest.share or 0.0, load=load_seen(busiest))


def cpu_load_notes(
    runs: Sequence[Run], baseline_runs: Sequence[BaselineRun], tolerated: float
) -> tuple[Note, ...]:
    """Return notes on high or unknown load by other processes; () if `tolerated` is infinite."""
    if math.isinf(tolerated):
        return ()
    busy = busiest([run.load.contention for run in runs])
    unknown = sum(
        load_share(run) is None
        or (run.load.contention is not None and run.load.contention.serves is False)
        for run in runs
    )
    is_told = any(run.load.contention is None or run.load.contention.has_cpu_times for run in runs)
    unrecorded = sum(load_share(run) is None for run in baseline_runs)
    key: NoteKey = "load_unknown" if is_told else "load_not_measured"
    notes = (
        busy,
        Note.of(key, count=unknown, of=len(runs)) if unknown else None,
        Note.of("load_not_recorded", count=unrecorded, of=len(baseline_runs))
        if unrecorded
        else None,
    )
    return tuple(filter(None, notes))
