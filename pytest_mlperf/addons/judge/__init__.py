"""Judge result files of other tools: vLLM, AIPerf, GuideLLM, lm-eval, pytest-benchmark."""

from __future__ import annotations

from pytest_mlperf.core.addons import Command

API = 1

JUDGE = Command("judge result files of other tools", f"{__name__}.command", "Judge")
