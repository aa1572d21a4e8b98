"""Show changes over time: a database of sessions, histories of cases, and judged drift."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.addons import Command

if TYPE_CHECKING:
    from pytest_mlperf import Verdict
    from pytest_mlperf.core.trend import TrendPoint
    from pytest_mlperf.extension import Criterion, OptionGroup, Results

API = 1

BISECT = Command(
    "find the commit or version that made a test slower", f"{__name__}.commands.bisect", "Judge"
)
HISTORY = Command(
    "show how a case changed over baselines in git and over sessions",
    f"{__name__}.commands.history",
    "Judge",
)
STORE = Command(
    "move sessions into the results database, or out of it",
    f"{__name__}.commands.store",
    "Several machines",
)


def mlperf_addoptions(group: OptionGroup) -> None:
    """Declare `--mlperf-drift` and `--mlperf-store`."""
    group.add(
        "drift",
        "fail|warn",
        "also judge the total change over all accepted baselines in git: fail or warn if it is a "
        "proven drop beyond the limit, even if each step was within it",
        group="ci",
    )
    group.add(
        "drift_since",
        "DAY",
        "ignore baselines that were accepted before this day (2026-11-01) in --mlperf-drift",
        "",
        convert=_day,
        ini_only=True,
    )
    group.add(
        "store",
        "URL",
        "keep every session in a database: sqlite (results.db in the folder of results), "
        "sqlite:///FILE or postgresql://USER@HOST/DATABASE. If it is unavailable, results are "
        "queued and sent next time",
        convert=_store,
        group="ci",
        beside=True,
    )


def _day(text: str) -> str:
    return dt.date.fromisoformat(text).isoformat() if text else ""


def _store(text: str) -> str | Path:
    from pytest_mlperf.stores.database import store_setting

    return store_setting(text)


def mlperf_verdict(
    verdict: Verdict, baselines: Sequence[TrendPoint], options: Mapping[str, Any]
) -> Criterion | None:
    """Judge the total change since the first accepted baseline; None without `--mlperf-drift`."""
    if options["drift"] is None:
        return None
    from pytest_mlperf.addons.history.drift import drift_of

    return drift_of(verdict, baselines, options["drift"], options["drift_since"])


def mlperf_session_finished(
    results: Results, folder: Path, options: Mapping[str, Any]
) -> Iterable[str]:
    """Send the results to the database of `--mlperf-store`; return lines for the terminal.

    A failure does not change the exit code.
    """
    if options["store"] and results.cases:
        from pytest_mlperf.addons.history.spool import deliver
        from pytest_mlperf.stores.database import store_of

        runs_dir = options["runs_dir"]
        delivery = deliver(store_of(options), runs_dir, results, folder / "results.json")
        return [delivery.line]
    return []
