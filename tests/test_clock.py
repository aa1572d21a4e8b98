"""Wall clocks jump; nothing but names and dates may depend on them."""

from __future__ import annotations

import ast

import pytest

from tests.sources import PACKAGE, modules, parsed

SUITE = """
schema = 1
round = "v4.1"
[workload]
name = "demo"
dataset = { use = "synthetic", samples = 8 }
[[engines]]
use = "null"
options = { latency_s = 0.001 }
[[scenarios]]
name = "Offline"
min_duration = "100ms"
target_qps = 500.0
[limits]
throughput = { max_drop = "90%" }
"""

RUN = ("-omlperf_control=off", "-omlperf_baseline_runs=2")
"""Of two runs none is an outlier, however busy the machine is."""

JUMPING = """
import datetime, itertools, time
_real = time.time
_steps = itertools.count()
time.time = lambda: _real() - 3600 * next(_steps)     # one hour back at every look

class _Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = _Jumping
"""


def test_nothing_reads_the_wall_clock_to_measure_time() -> None:
    """Durations come from monotonic clocks. Nine places read `time.time`.

    The samplers of GPUs and of the host, with a monotonic one: LoadGen writes its window in UTC;
    a wall clock that was set in between makes the energy unknown. Our own loops, for when a window,
    a benchmark of pytest-benchmark or a harness's point began. And the memories of builds and of
    weights' digests, for the age of a file's stamp; a node of a fleet too. And the watch of
    the wall clock itself.
    """
    uses = {
        str(path.relative_to(PACKAGE))
        for path in modules().values()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute)
        and node.attr == "time"
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
    }

    assert uses == {
        "hardware/clock.py",
        "hardware/rapl.py",
        "hardware/sampler.py",
        "plugin/benchmark_process.py",
        "addons/fleet/node.py",
        "run/checkpoints/_store.py",
        "run/worker/closed_loop.py",
        "run/worker/point_window.py",
        "stores/digests.py",
    }


@pytest.mark.process
@pytest.mark.nightly
def test_a_clock_that_jumps_back_an_hour_at_every_look_changes_no_verdict(
    pytester: pytest.Pytester,
) -> None:
    pytester.makefile(".mlperf.toml", demo=SUITE)
    pytester.makeconftest(JUMPING)

    recorded = pytester.runpytest_subprocess("demo.mlperf.toml", "--mlperf-update=missing", *RUN)
    judged = pytester.runpytest_subprocess("demo.mlperf.toml", *RUN)

    recorded.stdout.fnmatch_lines(["*1 recorded*"])
    judged.stdout.fnmatch_lines(["*1 passed*"])
    assert len(list((pytester.path / ".mlperf" / "runs").iterdir())) == 2
