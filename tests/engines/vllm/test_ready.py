"""A twin that is written for vLLM's kernels is the same model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.vllm.ready import whisper
from tests.suites.tiny_twin import Twin

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

pytest.importorskip("torch", reason="needs pytest-mlperf[lm]")
pytest.importorskip("transformers", reason="needs pytest-mlperf[lm]")


def test_a_whisper_with_copies_of_its_state_says_the_same(tmp_path: Path) -> None:
    twin = Twin("whisper")

    assert twin.answers(whisper(tmp_path)) == twin.answers()
