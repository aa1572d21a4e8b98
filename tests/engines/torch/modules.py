"""Factories of small modules, and what runs an engine on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_mlperf.engines.torch.module import TorchModuleEngine
from tests.engines.recording import Samples, Tokenless, ask

HERE = "tests.engines.torch.modules"


def open_engine(samples: Sequence[Any], factory: str, **options: Any) -> TorchModuleEngine:
    """Return an engine with a factory of this module, or any other."""
    place = f"{HERE}:{factory}" if factory in globals() else factory
    given = {"model": None, "precision": "fp32", "threads": 1, "factory": place}
    return TorchModuleEngine(dataset=Samples(samples), **{**given, **options})


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


def pairs(*, model: object = None) -> torch.nn.Module:
    return Pairs()


class Lengths(torch.nn.Module):
    """Doubles what is there, and gives the number of rows each sample was filled up to."""

    batching = "pad"

    def forward(self, tokens: Any, mask: Any) -> dict[str, Any]:
        filled = torch.full_like(tokens, tokens.shape[1])
        return {"twice": 2 * tokens * mask, "filled": filled}


def lengths(*, model: object = None) -> torch.nn.Module:
    return Lengths()


class Dropout(torch.nn.Module):
    """Would drop half of everything, were it in training."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, self.training)


def dropout(*, model: object = None) -> torch.nn.Module:
    return Dropout()


class Kinds(torch.nn.Module):
    """Answers with several tensors, by position."""

    def forward(self, first: Any, second: Any) -> tuple[Any, ...]:
        total = first + second
        return total, total.argmax(dim=1), total > 0, "no tensor"


def kinds(*, model: object = None) -> torch.nn.Module:
    return Kinds()


class Short(torch.nn.Module):
    """Forgets a sample."""

    def forward(self, x: Any) -> Any:
        return x[1:]


def short(*, model: object = None) -> torch.nn.Module:
    return Short()


class Prepared(torch.nn.Module):
    """Takes text, which it turns into numbers when it is loaded."""

    def prepare(self, sample: str) -> NDArray[np.float32]:
        return np.array([len(sample)], np.float32)

    def forward(self, x: Any) -> Any:
        return x


def prepared(*, model: object = None) -> torch.nn.Module:
    return Prepared()


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


wrong_batching = torch.nn.Identity()
wrong_batching.batching = "sort"


def sorting(*, model: object = None) -> torch.nn.Module:
    return wrong_batching
