"""Judge result files of other tools, such as vLLM, AIPerf, GuideLLM and lm-eval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mlperf.core.addons import Command

if TYPE_CHECKING:
    import pytest

API = 1

JUDGE = Command(
    "judge result files of other tools", f"{__name__}.command", "Judge", f"{__name__}.doctor"
)


def mlperf_collect_file(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the tests of a `*.judge.toml` file; None for other files."""
    if not path.name.endswith(".judge.toml"):
        return None
    from pytest_mlperf.addons.judge.collecting import JudgeFile

    return JudgeFile.from_parent(parent, path=path)
