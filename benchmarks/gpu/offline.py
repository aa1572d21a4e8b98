"""Engines of the plugin under LoadGen in this process, and plain loops beside them."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.job import LoadGenSettings, Seeds
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.worker import _loadgen as loadgen

LOOK_S = 0.1
"""Between two looks at the clock of a plain loop."""

SEEDS = Seeds(qsl=11, sample_index=12, schedule=13)
_runs = count()


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One measured window.

    Attributes:
        units: Samples or tokens that were done in it.
        begin_s: Monotonic time.
        end_s: Likewise.
        samples: Samples that were done.
    """

    units: float
    begin_s: float
    end_s: float
    samples: int

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.units / (self.end_s - self.begin_s)


@dataclass(kw_only=True)
class Prompts:
    """A data set of random token ids, all of one length."""

    samples: int
    tokens: int
    vocabulary: int
    digest: str = "0" * 64

    def __len__(self) -> int:
        return self.samples

    def input(self, index: int) -> list[int]:
        """Return the ids of a prompt."""
        numbers = random.Random(index)
        return [numbers.randrange(10, self.vocabulary) for _ in range(self.tokens)]

    def reference(self, index: int) -> int:
        """Return nothing of use."""
        return index


@dataclass(kw_only=True)
class Images:
    """A data set of random images."""

    samples: int
    side: int
    digest: str = "0" * 64

    def __len__(self) -> int:
        return self.samples

    def input(self, index: int) -> Any:
        """Return an image, float32 of shape (3, side, side)."""
        import numpy as np

        shape = (3, self.side, self.side)
        return np.random.default_rng(index).standard_normal(shape, np.float32)

    def reference(self, index: int) -> int:
        """Return nothing of use."""
        return index


@dataclass(kw_only=True)
class Questions:
    """A data set of random features as the data set squad gives them, all of one length."""

    samples: int
    tokens: int
    vocabulary: int
    digest: str = "0" * 64

    def __len__(self) -> int:
        return self.samples

    def input(self, index: int) -> dict[str, Any]:
        """Return ids, mask and segments, int64 of shape (tokens,)."""
        import numpy as np

        ids = np.random.default_rng(index).integers(10, self.vocabulary, self.tokens)
        ones = np.ones(self.tokens, np.int64)
        return {"input_ids": ids, "input_mask": ones, "segment_ids": 0 * ones}

    def reference(self, index: int) -> int:
        """Return nothing of use."""
        return index


def under_loadgen(engine: Engine, folder: Path, *, data: int, samples: int, tokens: bool) -> Timed:
    """Run LoadGen's Offline scenario once; the window is that of its own log.

    Args:
        engine: Open.
        folder: Gets a folder with LoadGen's logs.
        data: Size of the data set.
        samples: To be issued.
        tokens: Units are tokens.

    Raises:
        RunError: LoadGen logged errors.
    """
    settings = LoadGenSettings(
        scenario=Scenario.OFFLINE,
        seeds=SEEDS,
        target_qps=1.0,
        min_duration_ms=1,
        min_query_count=samples,
        performance_samples=data,
        tokens=tokens,
    )
    plan = loadgen.plan_performance(settings, data)
    logs = folder / f"loadgen-{next(_runs)}"
    logs.mkdir(parents=True)
    with _quiet():
        loadgen.run(plan, logs, engine, loadgen.make_sink(plan, _fail, logs))
    detail = parse_detail(logs / DETAIL)
    detail.require_no_errors()
    metrics = detail.metrics(Scenario.OFFLINE)
    offset_s = time.time() - time.monotonic()
    begin_s, end_s = (wall - offset_s for wall in detail.window_s)
    rate = metrics["tokens_per_second" if tokens else "throughput"]
    done = round(metrics["throughput"] * (end_s - begin_s))
    return Timed(units=rate * (end_s - begin_s), begin_s=begin_s, end_s=end_s, samples=done)


def loop(call: Callable[[], object], wait: Callable[[], None], each: int, seconds: float) -> Timed:
    """Call again and again for so many seconds.

    Args:
        call: Does `each` units of work on the device.
        wait: Waits until the device has done them.
        each: Units of a call.
        seconds: How long.
    """
    call()
    wait()
    begin_s = time.monotonic()
    call()
    wait()
    # The device does not run dry at every call, only at each look at the clock.
    times = max(1, int(LOOK_S / (time.monotonic() - begin_s)))
    calls, begin_s = 0, time.monotonic()
    while time.monotonic() < begin_s + seconds:
        for _ in range(times):
            call()
        wait()
        calls += times
    end_s = time.monotonic()
    return Timed(units=calls * each, begin_s=begin_s, end_s=end_s, samples=calls * each)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what LoadGen prints out of the report's progress."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def _fail(error: BaseException) -> None:
    # LoadGen survives no exception in its callbacks: the process would hang.
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(70)
