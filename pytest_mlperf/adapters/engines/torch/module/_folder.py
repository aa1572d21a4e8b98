"""Read models from folders: dimensions from config.json, tensors from safetensors files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch

from pytest_mlperf.adapters.engines import broken, weight_files
from pytest_mlperf.adapters.engines.llm.model_folder import read_json
from pytest_mlperf.extension import sha256, some

WEIGHTS_SEED = 20_240_828
S = TypeVar("S")
M = TypeVar("M", bound=Any)


def sizes_in(folder: Path, kind: Callable[..., S], model_type: str) -> S:
    """Read a model's dimensions from config.json into the dataclass `kind`; validate each value."""
    file = folder / "config.json"
    config = read_json(file)
    if (actual := config.pop("model_type", model_type)) != model_type:
        raise broken(file, f'has model_type {actual!r:.40}, but this factory needs "{model_type}"')
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, value in config.items():
        if name not in defaults:
            raise broken(file, f"key {name!r} is unknown; valid are {', '.join(defaults)}")
        listed = isinstance(defaults[name], tuple)
        numbers = value if listed and isinstance(value, list) else [value]
        whole = all(type(number) is int and number >= 1 for number in numbers)
        if isinstance(value, list) is not listed or not numbers or not whole:
            form = "a list of whole numbers" if listed else "a whole number"
            raise broken(file, f"{name} = {value!r} is not {form} of at least 1")
    parsed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
    }
    return kind(**parsed)


def module_with_weights(folder: Path, weights: str, make: Callable[[], M]) -> M:
    """Make a module and load a folder's weights, or random ones if `weights` is "dummy".

    Also set its attribute `facts` to the weights' SHA-256, or to {"weights": "dummy"}.
    """
    if weights == "dummy":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(WEIGHTS_SEED)
            module = make()
        module.facts = {"weights": "dummy"}
        return module
    files, module = weight_files(folder), make()
    checkpoint = Weights(folder, files)
    for name, tensor in module.state_dict().items():
        tensor.copy_(checkpoint.take(name, tuple(tensor.shape)))
        if not bool(tensor.isfinite().all()):
            raise broken(folder, f"{name} has a weight that is NaN or infinite")
    module.facts = {"weights_sha256": sha256(files)[:16]}
    return module


class Weights:
    """Read tensors from safetensors files by name; ignore the prefix "model." of names."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        """List the names of all tensors in the files; read no tensor yet."""
        self._folder = folder
        self._places = {}
        with ExitStack() as opened:
            for path in files:
                file = opened.enter_context(safetensors.safe_open(path, "pt"))
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._places[name.removeprefix("model.")] = (path, name)

    def take(self, name: str, shape: tuple[int, ...]) -> Any:
        if name not in self._places:
            names = some(sorted(self._places)) or "nothing"
            raise broken(self._folder, f"the checkpoint lacks {name}; it has {names}")
        path, stored_name = self._places[name]
        with safetensors.safe_open(path, "pt") as file:
            tensor = file.get_tensor(stored_name)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise broken(
                self._folder,
                f"weights do not fit config.json: {name} is {tensor.dtype} {list(tensor.shape)} "
                f"and should be floats {list(shape)}",
            )
        return tensor
