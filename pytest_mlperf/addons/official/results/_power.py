"""Power of a submission: what PTDaemon wrote while LoadGen ran, as the round's table shows it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.results._logs import is_summary
from pytest_mlperf.addons.official.results._reading import text_of
from pytest_mlperf.core.job import STREAMS
from pytest_mlperf.rounds.published import PowerUnit
from pytest_mlperf.run.logs import CLOCK, Detail

POWER_FILE = "spl.txt"
"""Each line is "Time,<time>,Watts,<watts>,...", about one a second."""

MAX_SYSTEM_WATTS = 1e7


def power_of(run: Path, root: Path, log: Detail, scenario: str) -> tuple[float, PowerUnit] | None:
    """Return the power of a run with its unit; None: not measured, or its log is a summary.

    Of Offline, Server and Interactive the mean in W. Of SingleStream and MultiStream the energy of
    a query in mJ: mean power times duration by queries. A MultiStream that was made of SingleStream
    counts eight of its queries as one.
    """
    path = run / POWER_FILE
    if not path.exists() or is_summary(log):
        return None
    begin_s, end_s = log.window_s
    timed = [w for at_s, w in _samples(path, text_of(path, root)) if begin_s < at_s < end_s]
    watts = [w for w in timed if w > 0]  # some meters write a negative one now and then
    if not watts:
        raise MlperfError(f"{path}: no sample between power_begin and power_end of its log")
    mean_w = fmean(watts)
    if scenario not in STREAMS:
        return mean_w, "W"
    queries = log.values.get("result_query_count")
    if not queries:
        raise MlperfError(f"{log.path}: no result_query_count, by which energy is shared")
    at_once = 8 if scenario == "MultiStream" != log.values.get("effective_scenario") else 1
    return mean_w * (end_s - begin_s) * 1e3 * at_once / queries, "mJ"


def _samples(path: Path, content: str) -> Iterator[tuple[float, float]]:
    """Yield when each sample was taken, seconds since the epoch, and its power, W."""
    for number, line in enumerate(content.splitlines(), start=1):
        cells = line.split(",")
        if cells == [""]:
            continue
        try:
            moment = dt.datetime.strptime(cells[1], CLOCK).replace(tzinfo=dt.UTC)
            watts = float(cells[3])
            if not abs(watts) <= MAX_SYSTEM_WATTS:
                raise ValueError
        except (ValueError, IndexError):
            raise MlperfError(f"{path}:{number}: no sample of PTDaemon") from None
        yield moment.timestamp(), watts
