"""Modules by their factory, in the precision asked for, with what belongs to the fingerprint."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, RunError, SuiteError
from pytest_mlperf.engines.files import one_line
from pytest_mlperf.engines.torch import devices, quantising

ENGINE = "torch-module"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A module that is ready to run.

    Attributes:
        module: In eval mode, on its device.
        dtype: What floating inputs are turned into.
        batching: How its samples become one batch, as the module says; None where it does not.
        facts: What belongs to the fingerprint.
    """

    module: Any
    dtype: Any
    batching: str | None
    facts: Mapping[str, str]


def open_module(
    factory: str,
    place: str,
    *,
    model: str | None,
    arguments: Mapping[str, object],
    dummy: bool,
    precision: str,
    device: Any,
    compile_mode: str | None,
) -> Loaded:
    """Call a factory and make its module ready.

    Args:
        factory: As the suite names it.
        place: "package.module:factory".
        model: What it is given as `model`.
        arguments: What else it is given.
        dummy: Also give it weights = "dummy".
        precision: One of `options.PRECISIONS`.
        device: A torch device.
        compile_mode: Of torch.compile; None leaves the module as it is.

    Raises:
        SuiteError: The factory cannot be found, or does not take these arguments.
        EnvironmentFault: A library is not installed, or the device has no kernels for the
            precision.
        RunError: The factory breaks, or returns no module, or one that cannot be quantised.
    """
    quantising.check(precision, device, engine=ENGINE)
    given = dict(arguments) | ({"weights": "dummy"} if dummy else {})
    with torch.no_grad():
        module = _call(_find(factory, place), factory, {"model": model, **given})
    own = dict(getattr(module, "facts", {}))
    if not {"weights", "weights_sha256"} & own.keys():
        own |= {"weights": "dummy"} if dummy else {"weights_sha256": state_sha256(module)[:16]}
    dtype = quantising.base_dtype(precision, torch.float32, device)
    module = module.eval().to(device, dtype)
    facts = {
        "torch": str(torch.__version__),
        "factory": factory,
        "architecture": type(module).__name__,
        "dtype": devices.dtype_name(dtype),
        "device": devices.device_name(device),
        **own,
    }
    if precision in quantising.QUANTISED:
        facts |= quantising.quantise(module, precision, device=device, engine=ENGINE)
    if compile_mode is not None:
        module.compile(mode=compile_mode)
    batching = getattr(module, "batching", None)
    return Loaded(module=module, dtype=dtype, batching=batching, facts=facts)


def state_sha256(module: Any) -> str:
    """Return the hex SHA-256 over a module's parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        kept = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {kept.dtype} {tuple(kept.shape)}\n".encode())
        digest.update(kept.reshape(-1).view(torch.uint8).numpy().data if kept.numel() else b"")
    return digest.hexdigest()


def _find(factory: str, place: str) -> Callable[..., Any]:
    name, _, attribute = place.partition(":")
    try:
        found = importlib.import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        if place != factory:
            raise EnvironmentFault(
                f"engine {ENGINE}: factory = {factory!r} needs {error.name}, which is not "
                "installed; try: pip install 'pytest-mlperf[lm]'"
            ) from error
        raise SuiteError(
            f"engine {ENGINE}: factory = {factory!r} cannot be imported: {one_line(error)}"
        ) from error
    except AttributeError as error:
        raise SuiteError(
            f"engine {ENGINE}: factory = {factory!r} is not there: {one_line(error)}"
        ) from error
    if not callable(found):
        raise SuiteError(f"engine {ENGINE}: factory = {factory!r} cannot be called")
    return found


def _call(function: Callable[..., Any], factory: str, given: Mapping[str, object]) -> Any:
    try:
        module = function(**given)
    except MlperfError:
        raise
    # A factory is the suite's own code, which may raise anything.
    except Exception as error:
        raise RunError(
            "engine",
            f"factory {factory} broke, called with {', '.join(given)}: "
            f"{type(error).__name__}: {one_line(error)}",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise RunError(
            "engine", f"factory {factory} returned {type(module).__name__}, not a torch.nn.Module"
        )
    return module
