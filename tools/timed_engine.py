"""An engine around another that adds up the time spent in the harness: in its sink's calls."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from pytest_mlperf.core.extension import Dataset, Sink
from pytest_mlperf.registry import resolve
from pytest_mlperf.run.worker._handicap import EngineAround

FOLDER = "PYTEST_MLPERF_TIMED"
"""Environment variable: the folder in which each process leaves its sums."""


class TimedEngine(EngineAround):
    """Runs another engine, and leaves what its reports to LoadGen cost in a file."""

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        engine: str,
        label: str,
        options: Mapping[str, Any],
    ) -> None:
        """Build the engine.

        Args:
            dataset: For it.
            model: For it.
            precision: For it.
            engine: Where its class is, as "package.module:name".
            label: Begins the file's name.
            options: Of it.
        """
        factory = resolve(engine)
        super().__init__(factory(dataset=dataset, model=model, precision=precision, **options))
        self._label = label
        self._sink: TimedSink | None = None
        self._sums = {"samples": 0, "calls": 0, "seconds": 0.0}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free it, and write the sums of every run whose outputs were not read."""
        super().__exit__(kind, error, trace)
        path = Path(os.environ[FOLDER]) / f"{self._label}.{os.getpid()}.json"
        path.write_text(json.dumps(self._sums), "utf-8")

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Submit with a sink that times its calls."""
        if self._sink is None or self._sink.sink is not sink:
            self._sink = TimedSink(sink, self._sums)
        self._engine.submit(ids, indices, self._sink)


class TimedSink:
    """Adds up how long the calls of the real sink take."""

    def __init__(self, sink: Sink, sums: dict[str, Any]) -> None:
        """Stand before `sink`; add to `sums`."""
        self.sink = sink
        self.wants_output = sink.wants_output
        self.times_tokens = sink.times_tokens
        self.needs_first_tokens = sink.needs_first_tokens
        self._sums = sums

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Hand through, timed."""
        begun = perf_counter()
        self.sink.first_tokens(ids, tokens)
        self._add(begun)

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Hand through, timed."""
        begun = perf_counter()
        self.sink.next_tokens(ids)
        self._add(begun)

    def streamed(
        self,
        ids: Sequence[int],
        after_first: Sequence[int | None],
        hidden: Sequence[int | None] | None = None,
    ) -> None:
        """Hand through."""
        self.sink.streamed(ids, after_first, hidden)

    def ended(
        self,
        ids: Sequence[int],
        reasons: Sequence[str],
        prompt_tokens: Sequence[int | None] | None = None,
    ) -> None:
        """Hand through."""
        self.sink.ended(ids, reasons, prompt_tokens)

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Hand through."""
        self.sink.attach(ids, artefacts)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Hand through, timed."""
        begun = perf_counter()
        self.sink.done(ids, outputs, n_tokens)
        self._add(begun, len(ids))

    def failed(self, error: BaseException) -> None:
        """Hand through."""
        self.sink.failed(error)

    def _add(self, begun_s: float, samples: int = 0) -> None:
        if not self.wants_output:
            self._sums["samples"] += samples
            self._sums["calls"] += 1
            self._sums["seconds"] += perf_counter() - begun_s
