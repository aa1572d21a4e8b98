"""Factories of small modules, and helpers that run an engine on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine
from tests.adapters.engines.recording import Samples, Tokenless, ask

HERE = "tests.adapters.engines.torch.modules"


def open_engine(samples: Sequence[Any], factory: str, **options: Any) -> TorchModuleEngine:
    """Return an engine with a factory of this module, or any other."""
    reference = f"{HERE}:{factory}" if factory in globals() else factory
    arguments = {"dataset": Samples(samples), "model": None, "precision": "fp32", "threads": 1}
    return TorchModuleEngine(**{**arguments, "factory": reference, **options})


def describe(samples: Sequence[Any], factory: str, **options: Any) -> dict[str, str]:
    """Return the description of an engine that has loaded."""
    with open_engine(samples, factory, **options) as engine:
        return dict(engine.describe())


def load(samples: Sequence[Any], factory: str, **options: Any) -> None:
    """Load an engine and all its samples."""
    with open_engine(samples, factory, **options) as engine:
        engine.load_samples(range(len(samples)))


def write_model(folder: Path, kind: str, sizes: Any, module: torch.nn.Module) -> Path:
    """Write a module's weights, and its sizes as config.json."""
    config = {"model_type": kind, **dataclasses.asdict(sizes)}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(
        {name: weight.contiguous() for name, weight in module.state_dict().items()},
        folder / "model.safetensors",
    )
    return folder


def answer(samples: Sequence[Any], factory: str, dtype: str = "<f4", **options: Any) -> list[Any]:
    """Return the numbers that each sample is answered with, all submitted at once."""
    sink = Tokenless(len(samples))
    with open_engine(samples, factory, **options) as engine:
        ask(engine, sink, len(samples))
    return [np.frombuffer(sink.outputs[100 + index], dtype) for index in range(len(samples))]


def linear(*, model: object = None, width: int = 4, bias: float = 0.0) -> torch.nn.Module:
    """Return rows times a fixed matrix."""
    made = torch.nn.Linear(width, 3)
    with torch.no_grad():
        made.weight.copy_(torch.arange(3.0 * width).reshape(3, width))
        made.bias.fill_(bias)
    return made


def rows(count: int, width: int = 4) -> list[NDArray[np.float32]]:
    return list(np.random.default_rng(1).normal(size=(count, width)).astype(np.float32))


class Pairs(torch.nn.Module):
    """Adds a user's numbers and those of its items, pair by pair."""

    batching = "concat"

    def __init__(self) -> None:
        super().__init__()
        self.facts = {"weights_sha256": "given"}

    def forward(self, user: Any, items: Any) -> Any:
        first, second = items
        return user.sum(dim=1) + first[:, 0] * second[:, 0]


class Lengths(torch.nn.Module):
    """Double each number, and return the number of rows each sample was padded to."""

    batching = "pad"

    def forward(self, tokens: Any, mask: Any) -> dict[str, Any]:
        filled = torch.full_like(tokens, tokens.shape[1])
        return {"twice": 2 * tokens * mask, "filled": filled}


class Dropout(torch.nn.Module):
    """Would drop half of everything, were it in training."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, self.training)


class Kinds(torch.nn.Module):
    """Answers with several tensors, by position."""

    def forward(self, first: Any, second: Any) -> tuple[Any, ...]:
        total = first + second
        return total, total.argmax(dim=1), total > 0, "no tensor"


class Short(torch.nn.Module):
    """Forgets a sample."""

    def forward(self, x: Any) -> Any:
        return x[1:]


class Prepared(torch.nn.Module):
    """Takes text, which it turns into numbers when it is loaded."""

    def prepare(self, sample: str) -> NDArray[np.float32]:
        return np.array([len(sample)], np.float32)

    def forward(self, x: Any) -> Any:
        return x


class Sorting(torch.nn.Identity):
    """Asks for a way of batching that does not exist."""

    batching = "sort"


def factory_of(module: type[torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Return a factory that takes a model, as all do, and needs none."""
    return lambda **_: module()


pairs, lengths, dropout = map(factory_of, (Pairs, Lengths, Dropout))
kinds, short, prepared, sorting = map(factory_of, (Kinds, Short, Prepared, Sorting))


def seeded(*, model: object = None, weights: str = "checkpoint") -> torch.nn.Module:
    made = torch.nn.Linear(2, 1)
    with torch.no_grad():
        made.weight.fill_(1.0 if weights == "dummy" else 2.0)
        made.bias.zero_()
    return made


def broken(*, model: object = None) -> torch.nn.Module:
    raise KeyError("no weights")


def nothing(*, model: object = None) -> object:
    return "module"
