"""What a suite may say to the engines of modules and images; wrong values are refused at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.torch.options import PRECISIONS, WEIGHTS

COMPILE_MODES = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
"""Modes of torch.compile."""

BLOCK_MODES = ("default", "max-autotune-no-cudagraphs")
"""Those without CUDA graphs, which would overwrite what one block keeps for another."""

Rules = tuple[tuple[str, object, bool, str], ...]
"""Name of an option, its value, whether that is valid, and what is expected."""


def check(engine: str, rules: Rules) -> None:
    """Refuse the first option that is not valid."""
    for name, value, valid, expected in rules:
        if not valid:
            raise SuiteError(f"engine {engine}: {name} = {value!r} is not {expected}")


def common_rules(
    *, precision: str, device: str, weights: str, batch_size: int, threads: int | None
) -> Rules:
    """Return the rules of options that both engines have."""
    return (
        ("precision", precision, precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
        (
            "device",
            device,
            re.fullmatch(r"cpu|cuda(:\d+)?", str(device)) is not None,
            "cpu, cuda or cuda:N",
        ),
        ("weights", weights, weights in WEIGHTS, f"one of {', '.join(WEIGHTS)}"),
        ("batch_size", batch_size, whole(batch_size, 1), "a number of samples, at least 1"),
        (
            "threads",
            threads,
            threads is None or whole(threads, 1),
            "a number of threads, at least 1",
        ),
    )


def compile_rule(value: bool | str, modes: tuple[str, ...]) -> Rules:
    """Return the rule of the option `compile`."""
    valid = value is False or value in modes
    return (("compile", value, valid, f"false or one of {', '.join(modes)}"),)


def whole(value: object, least: int) -> bool:
    """Tell whether a value is a whole number of at least `least`."""
    return type(value) is int and value >= least


def check_arguments(engine: str, arguments: Mapping[str, object] | None) -> dict[str, object]:
    """Return the arguments for a factory.

    Raises:
        SuiteError: They are no table, or name what the engine gives itself.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise SuiteError(f"engine {engine}: arguments = {arguments!r} is not a table")
    for name in ("model", "weights"):
        if name in arguments:
            own = "workload.model" if name == "model" else "the engine's option weights"
            raise SuiteError(f"engine {engine}: arguments has {name!r}; set {own} instead")
    return dict(arguments)
