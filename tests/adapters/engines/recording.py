"""What tests of all engines share: a data set, sinks, and samples asked of an engine."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_mlperf.core.extension import Engine
from pytest_mlperf.testing import RecordingSink


class Samples:
    """A data set of whatever it is given."""

    digest = "0" * 64

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def input(self, index: int) -> Any:
        return self._samples[index]

    def reference(self, index: int) -> Any:
        return None


class Recorder(RecordingSink):
    """A sink for a language model, whose counts of tokens must come."""

    def __init__(
        self,
        expected: int = 0,
        *,
        wants_output: bool = True,
        times_tokens: bool = True,
        offline: bool = False,
    ) -> None:
        super().__init__(
            expected,
            wants_output=wants_output,
            times_tokens=times_tokens,
            counts_tokens=True,
            needs_first_tokens=times_tokens and not offline,
        )

    @property
    def message(self) -> str:
        """The text of the one error."""
        self.wait_for_end()
        (error,) = self.errors
        return str(error)


class Tokenless(RecordingSink):
    """A sink for models whose answers are not tokens: it refuses token counts."""

    def __init__(self, expected: int = 0, *, wants_output: bool = True) -> None:
        super().__init__(expected, wants_output=wants_output, counts_tokens=False)


def ask(engine: Engine, sink: RecordingSink, samples: int, *, one_by_one: bool = False) -> None:
    """Submit samples 0, 1, … as ids 100, 101, … and wait for them; the engine is entered."""
    engine.load_samples(range(samples))
    ids = range(100, 100 + samples)
    if one_by_one:
        for sample, index in zip(ids, range(samples), strict=True):
            engine.submit([sample], [index], sink)
    else:
        engine.submit(ids, range(samples), sink)
    sink.wait()


def packed(row: Iterable[int]) -> bytes:
    """Return tokens as an engine answers with them: int64, little-endian."""
    tokens = list(row)
    return struct.pack(f"<{len(tokens)}q", *tokens)


def answers_of(engine: Engine, samples: int, *, one_by_one: bool = False) -> list[list[int]]:
    """Return the tokens that an engine, not entered yet, generates for each of its samples."""
    sink = Recorder(samples, times_tokens=False)
    with engine:
        ask(engine, sink, samples, one_by_one=one_by_one)
    answers = sink.answers
    return [answers[100 + index] for index in range(samples)]


class SizedSamples(Samples):
    """A data set that also says how long each answer is to be."""

    def __init__(self, samples: Sequence[Any], lengths: Sequence[int]) -> None:
        super().__init__(samples)
        self._lengths = lengths

    def output_tokens(self, index: int) -> int:
        return self._lengths[index]
