"""Send the test reports of a case's pytest process on a node to the session.

pytest imports this module early, by `-p`, before it captures output: stdout is reserved for the
messages to the session.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest

WORKER = "MLPERF_FLEET_WORKER"
"""Variable with the session's input of its worker, as JSON."""

INTERRUPT_GRACE_SECONDS = 20.0


class _Channel:
    def __init__(self) -> None:
        # Ray starts processes with signals blocked, and descendants inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._stdin = os.dup(0)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._stdin, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(INTERRUPT_GRACE_SECONDS)
        os.killpg(0, signal.SIGKILL)

    def send(self, message: str, **content: Any) -> None:
        print(json.dumps({"topic": message, **content}, default=str), file=self._out, flush=True)


_CHANNEL = _Channel() if WORKER in os.environ else None
"""None if the module is only imported, as in tests, so that stdout stays as it is."""


def _send(message: str, **content: Any) -> None:
    if _CHANNEL:
        _CHANNEL.send(message, **content)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make this process look like a pytest-xdist worker to plugins, and register the reporter."""
    config.workerinput = json.loads(os.environ.pop(WORKER, "{}"))  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    config.pluginmanager.register(_Reporting(config), "mlperf-fleet-child")


class _Reporting:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        plain = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _send("report", report=plain)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            _send("uncollected", cause=report.longreprtext)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        _send("finished", notices=getattr(config, "workeroutput", {}).get("mlperf_notices"))
