"""What torch engines need beyond torch: the device, and what quantises; light to import."""

from __future__ import annotations

import importlib.util

from pytest_mlperf.core.errors import EnvironmentFault

PLAIN = ("fp32", "bf16", "fp16")
"""Precisions of weights that are loaded as they are."""


def require_device(engine: str, *, device: str, precision: str, is_quantised: bool = False) -> None:
    """Ask torch for the device and for kernels; where neither is in question it is not imported.

    Args:
        engine: For messages.
        device: As the suite names it.
        precision: What weights are loaded as.
        is_quantised: The weights come so already.

    Raises:
        EnvironmentFault: The device is not here, torchao is not, or there are no kernels.
    """
    as_it_is = is_quantised or precision in PLAIN
    if device == "cpu" and as_it_is:
        return
    from pytest_mlperf.engines.torch.devices import find_device
    from pytest_mlperf.engines.torch.quantising import check

    found = find_device(device, engine=engine)
    if not as_it_is:
        check(precision, found, engine=engine)


def require_attention(name: str) -> None:
    """Ask transformers for an implementation of attention that is a library of its own.

    Raises:
        EnvironmentFault: It is not installed.
    """
    if not name.startswith("flash_attention_"):
        return
    from transformers import utils

    number = name.removeprefix("flash_attention_")
    here = getattr(utils, f"is_flash_attn_{number}_available")
    if not (here() or utils.is_kernels_available()):
        raise EnvironmentFault(
            f"engine torch: attention = {name!r} cannot be used here: flash attention {number} is "
            "not installed; pip install flash-attn, or leave attention out"
        )


def require_module(engine: str, library: str, purpose: str, extra: str) -> None:
    """Look for a library that some options need.

    Args:
        engine: For messages.
        library: As it is imported.
        purpose: What it is needed for.
        extra: Of this package, which brings it.

    Raises:
        EnvironmentFault: It is not installed.
    """
    if importlib.util.find_spec(library) is None:
        raise EnvironmentFault(
            f"engine {engine}: {purpose} needs {library}, which is not installed; "
            f"try: pip install 'pytest-mlperf[{extra}]'"
        )
