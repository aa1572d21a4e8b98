"""How text is generated, and what every finished answer must pass before it is reported."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.prompts import Limits

WATCHED = 32
"""Finished samples after which a model that never ended by itself is an error."""

ANY_TOKEN = 1 << 63
"""Token ids are below this where no configuration says more."""

Tokens = Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Greedy or beam search; nothing is ever sampled.

    Attributes:
        max_new_tokens: Most tokens per answer, the end token included.
        min_new_tokens: Tokens before the end token may come.
        max_prompt_tokens: Longer prompts are cut to so many tokens; None cuts none.
        num_beams: 1 is greedy.
        ignore_eos: Every answer gets exactly `max_new_tokens`.
        eos: The model's end tokens, known once it is loaded; the one that ends an answer belongs
            to it.
    """

    max_new_tokens: int
    min_new_tokens: int
    max_prompt_tokens: int | None = None
    num_beams: int = 1
    ignore_eos: bool
    eos: tuple[int, ...] = ()

    def check(self, engine: str) -> None:
        """Refuse lengths out of range, in an engine's name.

        Raises:
            SuiteError: One of them is.
        """
        most, fewest, cut = self.max_new_tokens, self.min_new_tokens, self.max_prompt_tokens
        wrong = None
        if not is_count(most):
            wrong = f"max_new_tokens = {most!r} is not at least 1"
        elif not 0 <= fewest <= most:
            wrong = f"min_new_tokens = {fewest!r} is not from 0 to max_new_tokens = {most}"
        elif cut is not None and not is_count(cut):
            wrong = f"max_prompt_tokens = {cut!r} is not at least 1"
        if wrong is not None:
            raise SuiteError(f"engine {engine}: {wrong}")

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end an answer here: none where they are ignored."""
        return () if self.ignore_eos else self.eos

    @property
    def padding(self) -> int:
        """A token for places that nobody reads."""
        return self.eos[0] if self.eos else 0

    def limits(self, vocabulary: int | None, *contexts: int | None) -> Limits:
        """Return what prompts must fit, by the model's vocabulary and all that limits its context.

        None is unknown.
        """
        return Limits(
            vocabulary=vocabulary or ANY_TOKEN,
            context=min((each for each in contexts if each is not None), default=None),
            max_new_tokens=self.max_new_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
        )

    def describe(self) -> Mapping[str, str]:
        """Return the settings that two runs must share to be compared."""
        cut = self.max_prompt_tokens
        return {
            "generation.max_new_tokens": str(self.max_new_tokens),
            "generation.min_new_tokens": str(self.min_new_tokens),
            "generation.num_beams": str(self.num_beams),
            "generation.ignore_eos": str(self.ignore_eos).lower(),
            "generation.eos": ",".join(map(str, self.eos)) or "none",
            **({} if cut is None else {"generation.max_prompt_tokens": str(cut)}),
        }

    def cut(self, row: Sequence[int]) -> Tokens:
        """Return a row up to and including its first end token, or all of it."""
        ends = self.ends
        for position, token in enumerate(row):
            if token in ends:
                return row[: position + 1]
        return row


def is_count(value: object) -> bool:
    """Whether this is a whole number, at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class Answers:
    """Reports finished samples; safe from several threads."""

    def __init__(self, generation: Generation, *, watch_ends: bool) -> None:
        """Report for a model.

        Args:
            generation: How its answers are made.
            watch_ends: A model that never ends by itself is an error (one with random weights may).
        """
        self._generation = generation
        self._lock = threading.Lock()
        self._watching = watch_ends and bool(generation.ends)
        self._endless = 0
        self._watched = WATCHED

    def expect(self, samples: int) -> None:
        """Take the number of samples that are loaded: fewer than 32 decide the sooner."""
        self._watched = min(WATCHED, samples)

    def deliver(
        self, ids: Sequence[int], indices: Sequence[int], rows: Sequence[Tokens], sink: Sink
    ) -> None:
        """Report samples as done.

        Args:
            ids: Their ids.
            indices: The data set index of each.
            rows: The generated tokens of each, without prompt and padding.
            sink: Where to report.

        Raises:
            RunError: A sample has too few tokens to be timed, or no sample ever ended in a run
                whose outputs are not read.
        """
        counts = [len(row) for row in rows]
        if sink.times_tokens and min(counts) < 2:
            self._refuse_short(indices[counts.index(min(counts))], min(counts))
        # Where outputs are read, their scores say what text without an end is worth.
        if self._watching and not sink.wants_output:
            self._watch(rows)
        outputs = None
        if sink.wants_output:
            outputs = [struct.pack(f"<{len(row)}q", *row) for row in rows]
        sink.done(ids, outputs, counts)

    def _refuse_short(self, index: int, tokens: int) -> None:
        if self._generation.max_new_tokens < 2:
            cause = "max_new_tokens is 1; set it to at least 2"
        else:
            fewest = self._generation.min_new_tokens
            cause = "the model ended at once; " + (
                f"the engine did not keep to min_new_tokens = {fewest}: leave the sample out, or "
                "set ignore_eos = true to measure fixed lengths"
                if fewest
                else "set min_new_tokens to at least 1"
            )
        raise RunError(
            "engine",
            f"sample {index} of the data set has {tokens} output token, but LoadGen needs at least "
            f"2 to time tokens: {cause}",
        )

    def _watch(self, rows: Sequence[Tokens]) -> None:
        ends = self._generation.ends
        with self._lock:
            for row in rows:
                if row[-1] in ends:
                    self._watching = False
                    return
                self._endless += 1
                if self._endless >= self._watched:
                    self._refuse_endless()

    def _refuse_endless(self) -> None:
        eos = ", ".join(map(str, self._generation.eos))
        raise RunError(
            "engine",
            f"none of the first {self._watched} samples ended within max_new_tokens = "
            f"{self._generation.max_new_tokens}; set max_new_tokens higher, check eos_token_id "
            f"({eos}) of the model, or set ignore_eos = true to measure fixed lengths",
        )
