"""DeepCache leaves out the deep blocks of a UNet between every N-th step, and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_mlperf.adapters.engines.torch.diffusion._images import (
    has_deep_blocks,
    install_deep_cache,
)
from pytest_mlperf.core.errors import SuiteError
from tests.adapters.engines.torch.pipelines import (
    PROMPTS,
    SIDE,
    Captions,
    ask,
    latents,
    make_unet_of,
    open_engine,
    paint,
    unet_config,
    write_pipeline,
)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def make_unet(**changes: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return make_unet_of(unet_config(**{"layers_per_block": 2, **changes})).eval()


def inputs(side: int = SIDE) -> dict[str, Any]:
    drawing = torch.Generator().manual_seed(9)
    return {
        "sample": torch.randn((2, 4, side, side), generator=drawing),
        "encoder_hidden_states": torch.randn((2, 7, 64), generator=drawing),
        "added_cond_kwargs": {
            "text_embeds": torch.randn((2, 32), generator=drawing),
            "time_ids": torch.tensor([[32.0, 32, 0, 0, 32, 32]] * 2),
        },
    }


def call(unet: Any, timestep: int, arguments: dict[str, Any], scale: float = 1.0) -> Any:
    sample = arguments["sample"] * scale
    with torch.no_grad():
        return unet(**{**arguments, "sample": sample}, timestep=timestep, return_dict=False)[0]


def count_calls(unet: Any) -> Counter[str]:
    """Count how often each block runs from now on."""
    calls: Counter[str] = Counter()
    names = {
        **{f"down{n}": block for n, block in enumerate(unet.down_blocks)},
        "mid": unet.mid_block,
        **{f"up{n}": block for n, block in enumerate(unet.up_blocks)},
        "outer downsampler": unet.down_blocks[0].downsamplers[0],
    }
    for name, block in names.items():
        block.register_forward_hook(lambda *_, name=name: calls.update([name]))
    return calls


def test_deep_blocks_run_at_every_nth_step_and_outer_ones_always() -> None:
    for every, steps in ((1, 5), (2, 5), (3, 7), (5, 4)):
        unet, arguments = make_unet(), inputs()
        calls = count_calls(unet)
        install_deep_cache(unet, every).start()
        for step in range(steps):
            call(unet, 900 - 100 * step, arguments)

        deep = math.ceil(steps / every)
        names = ("down1", "down2", "mid", "up0", "up1", "outer downsampler")
        assert calls == {"down0": steps, "up2": steps, **dict.fromkeys(names, deep)}


def test_a_step_that_runs_all_blocks_is_the_unets_own_and_others_take_fewer_operations() -> None:
    """Counted by torch: steps between do less than half of the multiplications."""
    plain, unet, arguments = make_unet(), make_unet(), inputs()
    install_deep_cache(unet, 2).start()

    for step, scale in ((900, 1.0), (800, 0.9), (700, 0.8)):
        with FlopCounterMode(display=False) as counter:
            output = call(unet, step, arguments, scale)
        with FlopCounterMode(display=False) as full:
            expected = call(plain, step, arguments, scale)
        assert torch.equal(output, expected) is (step != 800)
        part = counter.get_total_flops() / full.get_total_flops()
        assert 0 < part < 0.5 if step == 800 else part == 1


@pytest.mark.parametrize("side", [SIDE, 18])
def test_a_step_between_is_the_outer_blocks_on_the_kept_features(side: int) -> None:
    """Computed by hand: the output of up block 1 at step one enters the last up block at step two.

    18 is not divisible by 4: then the UNet passes its up blocks the size to make.
    """
    plain, unet, arguments = make_unet(), make_unet(), inputs(side)
    kept: list[Any] = []
    hook = plain.up_blocks[1].register_forward_hook(
        lambda *hook_arguments: kept.append(hook_arguments[2])
    )
    call(plain, 900, arguments)
    hook.remove()
    # The same call with the features put in place of what the deep blocks give.
    plain.up_blocks[1].register_forward_hook(lambda *_: kept[0])
    install_deep_cache(unet, 2).start()
    call(unet, 900, arguments)

    assert torch.equal(call(unet, 800, arguments, 0.5), call(plain, 800, arguments, 0.5))


def test_a_new_image_forgets_the_features_of_the_last(tiny: Path) -> None:
    """An image is the same whatever came before; the longer the reuse, the farther it is off."""
    prompts, single = (
        Captions([PROMPTS[1], PROMPTS[0]], latents()),
        Captions(PROMPTS[:1], latents()),
    )

    usual = paint(tiny, single, steps=4)
    off, two, four = (paint(tiny, single, steps=4, deepcache=every) for every in (1, 2, 4))
    with open_engine(tiny, prompts, deepcache=2, steps=4) as engine:
        both, facts = ask(engine, 2), engine.describe()

    np.testing.assert_array_equal(off, usual)
    np.testing.assert_array_equal(both[1:], two)
    apart = [np.abs(found.astype(int) - usual).mean() for found in (two, four)]
    assert 0 < apart[0] < apart[1] < 4.0
    assert facts["deepcache"] == "2"


def test_a_unet_of_one_level_has_no_deep_blocks(tmp_path: Path) -> None:
    flat = {
        "block_out_channels": (32,),
        "down_block_types": ("CrossAttnDownBlock2D",),
        "up_block_types": ("CrossAttnUpBlock2D",),
        "attention_head_dim": (2,),
        "transformer_layers_per_block": (1,),
    }
    assert not has_deep_blocks(make_unet(**flat))
    write_pipeline(tmp_path, **flat)
    with (
        pytest.raises(SuiteError, match="deepcache = 2 needs a UNet of two levels or more"),
        open_engine(tmp_path, Captions(PROMPTS), deepcache=2),
    ):
        pass
