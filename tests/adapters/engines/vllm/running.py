"""Engines on prompts, on the stand-in or on vLLM itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.engines.vllm import VllmEngine
from tests.adapters.engines.recording import Samples, answers_of


def open_engine(folder: Path, prompts: Sequence[Any], **options: Any) -> VllmEngine:
    """Return an engine on these prompts."""
    arguments = {"dataset": Samples(prompts), "model": str(folder), "precision": "fp32"}
    return VllmEngine(**{**arguments, **options})


def describe(folder: Path, prompts: Sequence[Any] = ([9],), **options: Any) -> dict[str, str]:
    """Return the description of an engine that has loaded."""
    with open_engine(folder, prompts, **options) as engine:
        return dict(engine.describe())


def answers(
    folder: Path, prompts: Sequence[Any], *, one_by_one: bool = False, **options: Any
) -> list[list[int]]:
    """Return the tokens that an engine of its own generates for each prompt."""
    return answers_of(open_engine(folder, prompts, **options), len(prompts), one_by_one=one_by_one)
