"""What the engine of images costs beside the plain pipeline, and what DeepCache saves.

Compared is processor time, with one torch thread, the best of some rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import torch

from tests.adapters.engines.torch.pipelines import (
    PROMPTS,
    Captions,
    ask,
    by_hand,
    latents,
    open_engine,
    plain_pipeline,
    write_pipeline,
)

pytestmark = [
    pytest.mark.benchmark(group="torch-diffusion"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ROUNDS = 5
STEPS = 20
SHARE = 0.9
"""What the engine must reach of the plain pipeline."""

FASTER = {2: 1.3, 4: 1.6}
"""How many times as fast reusing deep features must be, by how often they are made."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pipeline(tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def in_turn(benchmark: Any, ways: dict[Any, Callable[[], object]]) -> dict[Any, float]:
    """Return the shortest time of each way."""
    times: dict[Any, list[float]] = {name: [] for name in ways}

    def turn() -> None:
        for name, work in ways.items():
            start = time.process_time()
            work()
            times[name].append(time.process_time() - start)

    turn()
    for each in times.values():
        each.clear()
    benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)
    best = {name: min(each) for name, each in times.items()}
    benchmark.extra_info.update({str(name): each for name, each in best.items()})
    return best


def test_the_engine_is_as_fast_as_the_plain_pipeline(
    benchmark: Any, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Six images of 20 steps in one batch."""
    start, plain = latents(), plain_pipeline(folder)
    prompts = PROMPTS[:3] * 2
    with open_engine(folder, Captions(prompts, start), steps=STEPS, batch_size=6) as engine:
        best = in_turn(
            benchmark,
            {
                "engine": lambda: ask(engine, len(prompts)),
                "plain": lambda: by_hand(plain, prompts, start, num_inference_steps=STEPS),
            },
        )
    ratio = best["plain"] / best["engine"]
    with capsys.disabled():
        print(
            f"\n{len(prompts)} images: engine {best['engine']:.3f} s, pipeline "
            f"{best['plain']:.3f} s of processor time; engine : pipeline = {ratio:.2f}, "
            f"target >= {SHARE}"
        )
    assert ratio >= SHARE


def test_reused_features_save_time(
    benchmark: Any, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """One image of 20 steps, with the deep blocks at every, every second and fourth step."""
    prompts = Captions(PROMPTS[:1], latents())
    images: dict[int, Any] = {}

    def paint(every: int, engine: Any) -> None:
        images[every] = ask(engine, 1)

    with (
        open_engine(folder, prompts, steps=STEPS) as usual,
        open_engine(folder, prompts, steps=STEPS, deepcache=2) as second,
        open_engine(folder, prompts, steps=STEPS, deepcache=4) as fourth,
    ):
        best = in_turn(
            benchmark,
            {
                1: lambda: paint(1, usual),
                2: lambda: paint(2, second),
                4: lambda: paint(4, fourth),
            },
        )
    for every, least in FASTER.items():
        ratio = best[1] / best[every]
        apart = np.abs(images[every].astype(int) - images[1]).mean()
        with capsys.disabled():
            print(
                f"\ndeepcache = {every}: {ratio:.2f} x as fast, target >= {least}; images differ "
                f"by {apart:.2f} of 255 on average"
            )
        assert ratio >= least
