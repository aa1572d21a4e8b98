"""Engines on prompts, on the stand-in or on vLLM itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.engines.vllm import VllmEngine
from tests.engines.torch.models import Prompts, Recorder


def open_engine(folder: Path, prompts: Sequence[Any], **options: Any) -> VllmEngine:
    """Return an engine on these prompts."""
    given = {"dataset": Prompts(prompts), "model": str(folder), "precision": "fp32"}
    return VllmEngine(**{**given, **options})


def ask(engine: VllmEngine, sink: Recorder, samples: int, *, one_by_one: bool = False) -> None:
    """Submit samples 0, 1, … as ids 100, 101, … and wait for them; the engine is entered."""
    engine.load_samples(range(samples))
    ids = range(100, 100 + samples)
    if one_by_one:
        for sample, index in zip(ids, range(samples), strict=True):
            engine.submit([sample], [index], sink)
    else:
        engine.submit(ids, range(samples), sink)
    sink.wait()


def answers(
    folder: Path, prompts: Sequence[Any], *, one_by_one: bool = False, **options: Any
) -> list[list[int]]:
    """Return the tokens that an engine of its own generates for each prompt."""
    sink = Recorder(expected=len(prompts), times_tokens=False)
    with open_engine(folder, prompts, **options) as engine:
        ask(engine, sink, len(prompts), one_by_one=one_by_one)
    return [sink.answers[100 + index] for index in range(len(prompts))]
