"""Compute a UNet's 8-bit convolutions, for which torch has no kernels, as matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import diffusers
import torch

from pytest_mlperf.adapters.conventions import MATRIX_CONVOLUTIONS

INT8_MIN, INT8_MAX, FP8_MAX = -128, 127, 448.0


class MatrixConvolution(torch.nn.Linear):
    """Compute a convolution as a product of torchao's weights with the inputs at each position."""

    def __init__(self, conv: Any) -> None:
        self._kernel, self._stride = conv.kernel_size, conv.stride
        (self._high, self._wide), (outputs, inputs) = conv.padding, conv.weight.shape[:2]
        columns = inputs * self._kernel[0] * self._kernel[1]
        super().__init__(columns, outputs, bias=conv.bias is not None)

    def forward(self, inputs: Any) -> Any:
        """Return (samples, outputs, height, width) for inputs (samples, inputs, height, width)."""
        windows = self._windows(self._rounded(inputs.permute(0, 2, 3, 1)))
        rows = windows.reshape(-1, self.in_features)
        multiply = self._int8 if self._is_int8 else self._fp8
        return multiply(rows, inputs.dtype).unflatten(0, windows.shape[:3]).permute(0, 3, 1, 2)

    @property
    def _is_int8(self) -> bool:
        return bool(self.weight.qdata.dtype == torch.int8)

    def _fp8_scale(self) -> float:
        return float(self.weight.act_quant_kwargs.hp_value_ub) / FP8_MAX

    def _rounded(self, inputs: Any) -> Any:
        """Return inputs in eight bits, viewed as int8; zero has the same bits in int8 and fp8."""
        weight = self.weight
        if self._is_int8:
            scaled = inputs / weight.act_quant_scale.flatten()
            return scaled.round().clamp(INT8_MIN, INT8_MAX).to(torch.int8)
        scaled = (inputs / self._fp8_scale()).clamp(-FP8_MAX, FP8_MAX)
        return scaled.to(weight.qdata.dtype).view(torch.int8)

    def _windows(self, inputs: Any) -> Any:
        """Pad; return windows (samples, height, width, kernel height, kernel width, channels)."""
        high, wide = self._high, self._wide
        padded = torch.nn.functional.pad(inputs, (0, 0, wide, wide, high, high))
        for side in (0, 1):
            padded = padded.unfold(1 + side, self._kernel[side], self._stride[side])
        return padded.permute(0, 1, 2, 4, 5, 3)

    def _int8(self, rows: Any, dtype: Any) -> Any:
        weight = self.weight
        scale = weight.act_quant_scale.flatten() * weight.scale.flatten()
        product = torch._int_mm(rows, weight.qdata.t()) * scale.float()
        return (product if self.bias is None else product + self.bias).to(dtype)

    def _fp8(self, rows: Any, dtype: Any) -> Any:
        weight = self.weight
        product = torch._scaled_mm(
            rows.view(weight.qdata.dtype),
            weight.qdata.t(),
            scale_a=torch.full((), self._fp8_scale(), device=rows.device),
            scale_b=weight.scale.reshape(()),
            out_dtype=dtype,
            use_fast_accum=True,
        )
        return product if self.bias is None else product + self.bias


class MatrixUnet(diffusers.UNet2DConditionModel):
    """Build a UNet in which the convolutions listed in its configuration are matrix products."""

    @classmethod
    def from_config(
        cls, config: Any = None, return_unused_kwargs: bool = False, **more: Any
    ) -> Any:
        result = super().from_config(config, return_unused_kwargs, **more)
        unet = result[0] if return_unused_kwargs else result
        for name in config[MATRIX_CONVOLUTIONS]:
            unet.set_submodule(name, MatrixConvolution(unet.get_submodule(name)))
        return result


def unet_class(config: Mapping[str, Any]) -> Any:
    return MatrixUnet if config.get(MATRIX_CONVOLUTIONS) else diffusers.UNet2DConditionModel
