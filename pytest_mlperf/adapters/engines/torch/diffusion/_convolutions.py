"""Convolutions of a UNet in eight bits, as products of matrices: torch has no kernels for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import diffusers
import torch

from pytest_mlperf.adapters.conventions import MATRIX_CONVOLUTIONS

INT8_MIN, INT8_MAX, FP8_MAX = -128, 127, 448.0


class MatrixConvolution(torch.nn.Linear):
    """Multiplies torchao's weights with what lies below the kernel at each place.

    Inputs are rounded first, with the scale that a builder found, so that what is copied has eight
    bits; channels come last, so that whole runs of them are copied.
    """

    def __init__(self, replaced: Any) -> None:
        self._kernel, self._stride = replaced.kernel_size, replaced.stride
        (self._high, self._wide), (outputs, inputs) = replaced.padding, replaced.weight.shape[:2]
        columns = inputs * self._kernel[0] * self._kernel[1]
        super().__init__(columns, outputs, bias=replaced.bias is not None)

    def forward(self, inputs: Any) -> Any:
        """Return (samples, outputs, height, width) for inputs (samples, inputs, height, width)."""
        below = self._below(self._rounded(inputs.permute(0, 2, 3, 1)))
        rows = below.reshape(-1, self.in_features)
        multiply = self._int8 if self._is_int8 else self._fp8
        return multiply(rows, inputs.dtype).unflatten(0, below.shape[:3]).permute(0, 3, 1, 2)

    @property
    def _is_int8(self) -> bool:
        return bool(self.weight.qdata.dtype == torch.int8)

    def _fp8_scale(self) -> float:
        return float(self.weight.act_quant_kwargs.hp_value_ub) / FP8_MAX

    def _rounded(self, inputs: Any) -> Any:
        """Return inputs in eight bits, seen as int8: a zero is one in both."""
        weight = self.weight
        if self._is_int8:
            scaled = inputs / weight.act_quant_scale.flatten()
            return scaled.round().clamp(INT8_MIN, INT8_MAX).to(torch.int8)
        scaled = (inputs / self._fp8_scale()).clamp(-FP8_MAX, FP8_MAX)
        return scaled.to(weight.qdata.dtype).view(torch.int8)

    def _below(self, inputs: Any) -> Any:
        """Return views of (samples, height, width, of the kernel: height, width, inputs)."""
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
    """A UNet some of whose convolutions are such products, as its configuration says."""

    @classmethod
    def from_config(
        cls, config: Any = None, return_unused_kwargs: bool = False, **more: Any
    ) -> Any:
        """Return a UNet without weights, as the base class does."""
        made = super().from_config(config, return_unused_kwargs, **more)
        unet = made[0] if return_unused_kwargs else made
        for name in config[MATRIX_CONVOLUTIONS]:
            unet.set_submodule(name, MatrixConvolution(unet.get_submodule(name)))
        return made


def unet_class(config: Mapping[str, Any]) -> Any:
    """Return the class for a UNet with this configuration."""
    return MatrixUnet if config.get(MATRIX_CONVOLUTIONS) else diffusers.UNet2DConditionModel
