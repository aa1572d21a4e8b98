"""LoadGen loops as its Python demos write them: what the worker's path is compared with.

Run as `python bare.py '{"loop": "inline", "settings": {...}}' FOLDER`; prints nothing, leaves
LoadGen's logs in FOLDER. Kept free of this package, so that nothing of it can help or hinder.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import mlperf_loadgen as lg


def complete(samples: list[Any]) -> None:
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])


def complete_tokens(samples: list[Any], tokens: int = 8) -> None:
    lg.FirstTokenComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0, tokens) for sample in samples])


def through_queue() -> Any:
    """Return an issue callback that hands samples to one long-lived thread."""
    queue: SimpleQueue[list[Any]] = SimpleQueue()

    def serve() -> None:
        while True:
            complete(queue.get())

    threading.Thread(target=serve, daemon=True).start()
    return queue.put


def ignore(*_: object) -> None:
    """Nothing to flush, load or unload."""


def main(given: dict[str, Any], folder: str) -> None:
    loops: dict[str, Callable[[], Any]] = {
        "inline": lambda: complete,
        "queue": through_queue,
        "tokens": lambda: complete_tokens,
    }
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, given["scenario"])
    settings.mode = lg.TestMode.PerformanceOnly
    for name, value in given["settings"].items():
        setattr(settings, name, value)
    logs = lg.LogSettings()
    output = lg.LogOutputSettings()
    output.outdir = folder
    logs.log_output = output
    logs.enable_trace = False
    loop: Callable[[], Any] = loops[given["loop"]]
    suite = lg.ConstructSUT(loop(), ignore)
    library = lg.ConstructQSL(1024, 1024, ignore, ignore)
    # The worker does the same: the comparison is about the path, not about these two.
    sys.setswitchinterval(1e-4)
    gc.collect()
    gc.freeze()
    gc.disable()
    lg.StartTestWithLogSettings(suite, library, settings, logs, folder + "/no-audit.config")
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
