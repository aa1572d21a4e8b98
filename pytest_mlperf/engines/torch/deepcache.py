"""DeepCache: a UNet's deep blocks run every N-th step, and their last features serve in between.

The technique is that of https://arxiv.org/abs/2312.00858. Features that change little from step to
step are those of the blocks far from input and output. Here only the outermost blocks run at every
step: the first down block, and the last up block, which takes the kept output of the up block
before it in place of a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class DeepCache:
    """Which step a denoising loop is at, and the deep features of the last step that made them."""

    def __init__(self, every: int) -> None:
        """Begin before the first step.

        Args:
            every: The deep blocks run at the first step, and at each `every`-th one after it.
        """
        self._every = every
        self._steps = 0
        # Kept as a truth: torch.compile would compile anew for each number of a step.
        self.reuses = False
        self.features: Any = None

    def start(self) -> None:
        """Begin a new denoising loop: what was kept of the last one is forgotten."""
        self._steps = 0
        self.features = None

    def step(self, *_: object) -> None:
        """Decide whether the deep blocks run; called before each call of the UNet."""
        self.reuses = self._steps % self._every != 0
        self._steps += 1


class _Deep(torch.nn.Module):
    """A block that runs only where deep features are made anew; else its input passes through.

    What comes out of deep blocks in between is read by deep blocks alone.
    """

    def __init__(self, block: Any, cache: DeepCache) -> None:
        super().__init__()
        self.block = block
        self._cache = cache
        self.has_cross_attention = getattr(block, "has_cross_attention", False)

    @property
    def resnets(self) -> Sequence[Any]:
        """The block's, which the UNet counts."""
        found: Sequence[Any] = self.block.resnets
        return found

    def forward(self, hidden_states: Any, *rest: Any, **named: Any) -> Any:
        if self._cache.reuses:
            return self._skipped(hidden_states)
        return self.block(hidden_states, *rest, **named)

    def _skipped(self, hidden_states: Any) -> Any:
        return hidden_states


class _DeepDown(_Deep):
    """A down block also returns the outputs of its layers, which up blocks take from the end."""

    def _skipped(self, hidden_states: Any) -> Any:
        layers = len(self.block.resnets) + len(self.block.downsamplers or ())
        return hidden_states, (hidden_states,) * layers


class _LastDeepUp(_Deep):
    """The up block whose output is kept."""

    def forward(self, hidden_states: Any, *rest: Any, **named: Any) -> Any:
        if not self._cache.reuses:
            self._cache.features = super().forward(hidden_states, *rest, **named)
        return self._cache.features


def fits(unet: Any) -> bool:
    """Tell whether a UNet has deep blocks: two levels or more."""
    return len(unet.down_blocks) > 1 and len(unet.up_blocks) > 1


def install(unet: Any, every: int) -> DeepCache:
    """Let a UNet2DConditionModel of diffusers reuse deep features; `start` begins a new image.

    Args:
        unet: Is changed; `fits` it.
        every: 1 would run all blocks at every step.
    """
    cache = DeepCache(every)
    outer = unet.down_blocks[0]
    for number, downsampler in enumerate(outer.downsamplers or ()):
        outer.downsamplers[number] = _Deep(downsampler, cache)
    for number in range(1, len(unet.down_blocks)):
        unet.down_blocks[number] = _DeepDown(unet.down_blocks[number], cache)
    if unet.mid_block is not None:
        unet.mid_block = _Deep(unet.mid_block, cache)
    last = len(unet.up_blocks) - 2
    for number in range(last):
        unet.up_blocks[number] = _Deep(unet.up_blocks[number], cache)
    unet.up_blocks[last] = _LastDeepUp(unet.up_blocks[last], cache)
    unet.register_forward_pre_hook(cache.step)
    return cache
