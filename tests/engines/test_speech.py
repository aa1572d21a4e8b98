"""Transcripts as MLPerf logs them; engines that take no sound say so before they load anything."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.case import SPEECH_LABELS
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.llm.speech import spelled
from pytest_mlperf.engines.tensorrt_llm import TensorRtLlmEngine
from pytest_mlperf.engines.vllm import VllmEngine
from tests.engines.recording import Samples


@given(st.text())
def test_a_transcript_is_spelled_character_by_character(text: str) -> None:
    """Of whatever is said, what is no label is left out, and ends without spaces."""
    places = struct.unpack(f"<{len(spelled(text)) // 8}q", spelled(text))

    expected = [letter for letter in text.lower().strip() if letter in SPEECH_LABELS]
    assert [SPEECH_LABELS[place] for place in places] == expected


@pytest.mark.parametrize("engine", [VllmEngine, TensorRtLlmEngine])
def test_engines_without_sound_say_which_one_has_it(engine: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    clips = Samples([{"audio": [0.0], "sampling_rate": 16000}])
    precision = engine.precisions[0]

    expected = "clips of sound are not supported here yet; use engine torch-whisper"
    with (
        pytest.raises(SuiteError, match=expected),
        engine(dataset=clips, model=str(tmp_path), precision=precision),
    ):
        pass
