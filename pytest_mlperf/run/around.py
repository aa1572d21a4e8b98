"""An engine around another one, which sees what is submitted and can stand before its sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from pytest_mlperf.core.extension import Engine, Sink


class EngineAround(Engine):
    """Hands everything through to another engine; subclasses change what they are for."""

    def __init__(self, engine: Engine) -> None:
        """Stand around `engine`."""
        self._engine = engine

    def __enter__(self) -> Self:
        """Load the engine."""
        self._engine.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the engine."""
        self._engine.__exit__(kind, error, trace)

    def load_samples(self, indices: Sequence[int]) -> None:
        """Hand through."""
        self._engine.load_samples(indices)

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Hand through."""
        self._engine.unload_samples(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand through."""
        self._engine.submit(ids, indices, sink)

    def client_lateness(self) -> Mapping[str, float]:
        """Hand through."""
        return self._engine.client_lateness()

    def describe(self) -> Mapping[str, str]:
        """Hand through."""
        return self._engine.describe()
