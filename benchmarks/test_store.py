"""What a store costs: a session of 100 cases that is added to 10,000, and a case's history.

    python -m benchmarks.test_store [--sessions 10000] [--url sqlite:///FILE]

fills a store and prints medians and worst times; under pytest a small one is filled.

    python -m benchmarks.test_store --site 1000 --sessions 200

makes a site of a store of so many cases instead.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.results import Results
from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.results import read_results

RECORDED = Path(__file__).parents[1] / "tests" / "data" / "replay" / "unchanged" / "results.json"
CASES = 100
METRICS = ("throughput", "latency_p50", "latency_p90", "latency_p99", "latency_mean")
"""As many as a usual verdict has."""


def session(number: int, cases: int = CASES) -> Results:
    """Return a session of so many cases: the performance test of a recorded one, varied."""
    recorded = read_results(RECORDED)
    (template,) = [r for r in recorded.cases if r.verdict.kind == "performance"][:1]
    rng = random.Random(number)
    results = []
    for place in range(cases):
        case = replace(template.verdict.case, workload=f"model{place}")
        (measured,) = template.verdict.metrics
        assert measured.now
        metrics = tuple(
            replace(measured, metric=name, now=measured.now * rng.lognormvariate(0, 0.01))
            for name in METRICS
        )
        verdict = replace(template.verdict, case=case, metrics=metrics)
        test = f"suites/model{place}.mlperf.toml::test_performance[{case.id}]"
        results.append(replace(template, test=test, verdict=verdict))
    day, second = divmod(number * 600, 86_400)
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(1.7e9 + day * 86_400 + second))
    return replace(recorded, run=f"run-{number:06}", started=started, cases=tuple(results))


def timed(action: Callable[[], object]) -> float:
    """Return how long an action takes, seconds."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure(url: str, sessions: int, *, at_the_end: int = 20) -> dict[str, list[float]]:
    """Fill a store and return seconds of what is done with the full one."""
    with opened(url, write=True) as store:
        for number in range(sessions - at_the_end):
            store.add(session(number))
        last = [session(number) for number in range(sessions - at_the_end, sessions)]
    metric = last[0].cases[0].verdict.metrics[0].metric
    names = [result.verdict.case.id for result in last[0].cases]

    def add(results: Results) -> None:
        with opened(url, write=True) as store:
            store.add(results)

    def history(case: str) -> None:
        with opened(url) as store:
            (one,) = store.histories(case, metric)
            assert len(one.points) == sessions

    return {
        "add a session": [timed(lambda one=one: add(one)) for one in last],  # type: ignore[misc]
        "history of a case": [timed(lambda one=one: history(one)) for one in names[:20]],  # type: ignore[misc]
    }


def site(url: str, cases: int, sessions: int, folder: Path) -> dict[str, list[float]]:
    """Fill a store and return the seconds of making its site, thrice."""
    from pytest_mlperf.cli import main as command

    with opened(url, write=True) as store:
        for number in range(sessions):
            store.add(session(number, cases))
    asked = ["report", "--format", "site", "--store", url, "-o", str(folder)]
    return {"a site": [timed(lambda: command(asked)) for _ in range(3)]}


def test_a_small_store_is_filled_and_read(tmp_path: Path) -> None:
    times = measure(str(tmp_path / "results.db"), 40)

    assert all(len(seconds) == 20 for seconds in times.values())


def main() -> None:
    """Print the times of a full store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--url")
    parser.add_argument("--site", type=int, metavar="CASES")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = parsed.url or str(Path(folder) / "results.db")
        times = (
            site(url, parsed.site, parsed.sessions, Path(folder) / "site")
            if parsed.site
            else measure(url, parsed.sessions)
        )
        for what, seconds in times.items():
            middle, worst = statistics.median(seconds) * 1e3, max(seconds) * 1e3
            print(f"{what}: median {middle:.1f} ms, worst {worst:.1f} ms of {len(seconds)}")
        if not parsed.url:
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
            cases = parsed.site or CASES
            print(f"{parsed.sessions} sessions of {cases} cases: {size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
