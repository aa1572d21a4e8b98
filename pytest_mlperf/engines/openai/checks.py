"""What every answer must pass before it is reported, and what is read of it."""

from __future__ import annotations

import struct
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.generation import WATCHED, Generation
from pytest_mlperf.engines.openai.bodies import Body
from pytest_mlperf.engines.openai.events import Answer
from pytest_mlperf.engines.openai.failures import Failed


class Checks:
    """Refuses answers that are not what was asked for."""

    def __init__(self, generation: Generation, *, watch_ends: bool) -> None:
        """Check answers of a model.

        Args:
            generation: What was asked for.
            watch_ends: A model that never ends by itself is an error (one with random weights may).
        """
        self._generation = generation
        self._watching = watch_ends and not generation.ignore_eos
        self._endless = 0
        self._watched = WATCHED

    def expect(self, samples: int) -> None:
        """Take the number of samples that are loaded: fewer than 32 decide the sooner."""
        self._watched = min(WATCHED, samples)

    def passed(self, answer: Answer, body: Body, index: int, sink: Sink) -> int:
        """Return the tokens of a complete answer.

        Raises:
            Failed: It is empty, was not counted, or is not what was asked for.
            RunError: No run with this model can be measured.
        """
        tokens = answer.tokens
        if tokens is None:
            raise Failed("uncounted answer", "it had neither usage nor token ids")
        if not tokens or not answer.started:
            raise Failed("empty answer", "the model ended at once, or the server gave nothing")
        self._check_counts(answer, tokens, body)
        self._check_length(tokens)
        if sink.times_tokens and tokens < 2:
            raise RunError(
                "engine",
                f"sample {index} of the data set has {tokens} output token, but LoadGen needs at "
                "least 2 to time tokens: "
                + (
                    "max_new_tokens is 1; set it to at least 2"
                    if self._generation.max_new_tokens < 2
                    else "the model ended at once; set min_new_tokens = 2, if the server takes it"
                ),
            )
        # Where outputs are read, their scores say what text without an end is worth.
        if self._watching and not sink.wants_output:
            self._watch(answer)
        return tokens

    def _check_counts(self, answer: Answer, tokens: int, body: Body) -> None:
        """Hold the server's counts against each other and against what was sent."""
        # An end token may be counted and not told.
        missing = tokens - answer.n_ids if answer.n_ids else 0
        if missing and (missing != 1 or answer.finish == "length"):
            raise Failed(
                "token ids lost",
                f"usage counts {tokens} tokens, and the stream had {answer.n_ids} token ids",
            )
        counted, sent = answer.prompt_tokens, body.prompt_tokens
        if None not in (counted, sent) and counted != sent:
            raise Failed(
                "another prompt", f"the server counts {counted} tokens in a prompt of {sent}"
            )

    def _check_length(self, tokens: int) -> None:
        most, fewest = self._generation.max_new_tokens, self._generation.min_new_tokens
        if tokens > most:
            raise Failed("too many tokens", f"{tokens}, but max_new_tokens = {most}")
        if self._generation.ignore_eos and tokens < most:
            raise Failed(
                "ignore_eos not obeyed", f"an answer ended after {tokens} of {most} tokens"
            )
        if tokens < fewest:
            raise Failed("too few tokens", f"{tokens}, but min_new_tokens = {fewest}")

    def _watch(self, answer: Answer) -> None:
        if answer.finish != "length":
            self._watching = False
            return
        self._endless += 1
        if self._endless >= self._watched:
            raise RunError(
                "engine",
                f"none of the first {self._watched} samples ended within max_new_tokens = "
                f"{self._generation.max_new_tokens}; set max_new_tokens higher, check the server's "
                "model, or set ignore_eos = true to measure fixed lengths",
            )


def output(answer: Answer, generation: Generation, tokenizer: Any) -> bytes:
    """Return an answer's tokens as scorers take them: int64, little-endian, end token included.

    Args:
        answer: A complete one whose text and ids were kept.
        generation: Has the end tokens.
        tokenizer: Makes tokens of text where the server gave no token ids.
    """
    ids = answer.ids
    if not ids:
        # JSON may carry a character in two halves, in two events; one that stays alone is none.
        text = "".join(answer.text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    ends = generation.ends
    if ends and answer.finish != "length" and (not ids or ids[-1] not in ends):
        ids = [*ids, ends[0]]
    return struct.pack(f"<{len(ids)}q", *ids)
