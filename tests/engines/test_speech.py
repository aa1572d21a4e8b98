"""Transcripts as MLPerf logs them; engines that take no sound say so before they load anything."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.case import SPEECH_LABELS
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.llm.speech import spelled
from pytest_mlperf.engines.tensorrt_llm import TensorRtLlmEngine
from tests.engines.recording import Samples


@given(st.text())
def test_a_transcript_is_spelled_character_by_character(text: str) -> None:
    places = struct.unpack(f"<{len(spelled(text)) // 8}q", spelled(text))

    expected = [letter for letter in text.lower().strip() if letter in SPEECH_LABELS]
    assert [SPEECH_LABELS[place] for place in places] == expected


def test_an_engine_without_sound_says_which_ones_have_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    clips = Samples([{"audio": [0.0], "sampling_rate": 16000}])

    expected = "clips of sound are not supported here yet; use engine vllm or torch-whisper"
    with (
        pytest.raises(SuiteError, match=expected),
        TensorRtLlmEngine(dataset=clips, model=str(tmp_path), precision="bf16"),
    ):
        pass
