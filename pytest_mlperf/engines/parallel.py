"""How many GPUs a language model is spread over, held against those that a case has."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.generation import is_count

OPTIONS = ("tensor_parallel_size", "pipeline_parallel_size")


def check_parallel(
    engine: str, count: int, options: Mapping[str, Any], *, further: tuple[str, str]
) -> None:
    """Refuse GPUs that would be reserved, powered and counted for nothing, or that are not there.

    Args:
        engine: Its name.
        count: GPUs of the accelerator.
        options: Of the engine; what is no count is refused elsewhere.
        further: The table of its library's own arguments, and the one that divides the work too.

    Raises:
        SuiteError: The product of all is another number.
    """
    table, name = further
    own = options.get(table)
    sizes = {option: options.get(option, 1) for option in OPTIONS}
    if isinstance(own, Mapping) and name in own:
        sizes[f"{table}.{name}"] = own[name]
    if not all(map(is_count, sizes.values())) or prod(sizes.values()) == count:
        return
    said = " x ".join(f"{name} = {size}" for name, size in sizes.items())
    used, first = prod(sizes.values()), next(iter(sizes))
    raise SuiteError(
        f"engine {engine}: {said} use {used} GPU{'s' * (used != 1)}, but the accelerator has "
        f"{count}: speed and energy are those of all of them; set {first} so that the product is "
        f"{count}, or accelerators to as many as are used"
    )
