"""Define prompts as token ids, answer lengths, and checks of finished answers."""

from __future__ import annotations

import math
import operator
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_mlperf import Dataset, RunError, Sink, SuiteError
from pytest_mlperf.adapters.conventions import pack_logprobs
from pytest_mlperf.adapters.engines import engine_error, is_count, refused_sample
from pytest_mlperf.extension import Rule, own_length, require_options

if TYPE_CHECKING:
    from pytest_mlperf.adapters.engines.llm.speech import SpeechClips


class Chats(Protocol):
    """Convert chats to token ids; keep their pictures by sample index until `forget`."""

    def tokens(self, index: int, request: Mapping[str, Any]) -> list[int]: ...

    def pictures(self, index: int) -> list[Any]: ...

    def forget(self, indices: Iterable[int]) -> None: ...


@dataclass(kw_only=True, slots=True)
class TokenPrompts:
    """Hold the token ids of loaded samples by index; check them against the model's limits.

    Attributes:
        tokenizer: Tokenizer of texts; None if the data set has token ids.
        vocabulary: Exclusive upper bound of token ids.
        context: Maximum tokens of prompt and answer together; None if unknown.
        max_prompt_tokens: Length to which prompts are truncated; None truncates none.
        lengths: Answer lengths of loaded samples, if the data set states them.
        chats: Converts chats to tokens; None if samples are not chats.
        clips: Provides the prompt tokens for audio clips; None if samples are not audio clips.
    """

    dataset: Dataset
    tokenizer: Any
    vocabulary: int
    context: int | None
    max_new_tokens: int
    max_prompt_tokens: int | None = None
    lengths: dict[int, int] = field(default_factory=dict)
    chats: Chats | None = None
    clips: SpeechClips | None = None
    _ids: dict[int, list[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> list[int]:
        return self._ids[index]

    @property
    def longest(self) -> int:
        return max(map(len, self._ids.values()), default=0)

    def load(self, indices: Sequence[int]) -> None:
        for index in indices:
            if index not in self._ids:
                tokens = self._tokens(index)[: self.max_prompt_tokens]
                if (length := own_length(self.dataset, index)) is not None:
                    self.lengths[index] = length
                self._check(index, tokens)
                self._ids[index] = tokens

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._ids.pop(index, None)
            self.lengths.pop(index, None)
        for media in (self.chats, self.clips):
            if media is not None:
                media.forget(indices)

    def _tokens(self, index: int) -> list[int]:
        if self.clips is not None:
            return self.clips.tokens(index)
        prompt = self.dataset.input(index)
        if isinstance(prompt, Mapping) and "messages" in prompt:
            if self.chats is not None:
                return self.chats.tokens(index, prompt)
            fault = (
                'is a turn of a conversation, which only engine openai with api = "chat" supports'
            )
            raise refused_sample(index, fault)
        if isinstance(prompt, str) and self.tokenizer is not None:
            return list(self.tokenizer(prompt)["input_ids"])
        try:
            return [operator.index(token) for token in prompt]
        except TypeError:
            raise refused_sample(
                index,
                f"is of type {type(prompt).__name__}; this engine takes text or lists of token "
                "ids, and all samples must be of the same kind",
            ) from None

    def _check(self, index: int, tokens: list[int]) -> None:
        if not tokens:
            raise refused_sample(index, "is an empty prompt; leave it out of the data set")
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
            invalid = next(token for token in tokens if not 0 <= token < self.vocabulary)
            raise refused_sample(
                index,
                f"has token id {invalid}, but the model's vocabulary has {self.vocabulary} tokens; "
                "use the data set that was tokenised for this model",
            )
        length = self.lengths.get(index)
        limit = self.max_new_tokens if length is None else length
        if self.context is not None and len(tokens) + limit > self.context:
            if length is not None:
                raise refused_sample(
                    index,
                    f"has {len(tokens)} tokens and asks for {length} more, which do not fit the "
                    f"model's context of {self.context}; lower the data set's output_tokens (or "
                    "max_new_tokens of the turn), or shorten the prompt",
                )
            raise refused_sample(
                index,
                f"has {len(tokens)} tokens, and max_new_tokens = {self.max_new_tokens} more do "
                f"not fit the model's context of {self.context}; set max_new_tokens to at most "
                f"{self.context - len(tokens)}, or shorten the prompt"
                if len(tokens) < self.context
                else f"has {len(tokens)} tokens and leaves no room for max_new_tokens = "
                f"{self.max_new_tokens} in the model's context of {self.context}; shorten the "
                "prompt, or use a model with a longer context",
            )


MAX_ENDLESS_SAMPLES = 32
"""Number of first samples of which one must end by itself."""

ANY_TOKEN = 1 << 63
"""Exclusive upper bound of token ids if the vocabulary is unknown."""

Tokens = Sequence[int]


SEEDS = 1 << 31
"""Exclusive upper bound of seeds, which every library accepts."""

DRAWING: Mapping[str, object] = {"top_p": 1.0, "top_k": None, "seed": None}
"""Options that apply only to sampled tokens, with their defaults."""

SAMPLING = ("temperature", *DRAWING)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of every language model engine for answer lengths and sampling.

    Attributes:
        max_new_tokens: Maximum tokens per answer. If the data set states answer lengths, it must be
            at least the longest of them.
        min_new_tokens: Minimum tokens before an end token is allowed; 1 prevents empty answers.
        ignore_eos: Whether to ignore end tokens, so that every answer has its maximum length.
        max_prompt_tokens: Length to which longer prompts are truncated at their end, as MLPerf's
            GPT-J reference truncates articles to 1919 tokens. None truncates none: prompts that are
            too long are errors.
        temperature: 0 selects the likeliest token. Above 0, tokens are sampled; higher values give
            more variety.
        top_p: Sample only from the likeliest tokens that together have this probability.
        top_k: Sample only from this number of likeliest tokens; None samples from all tokens.
        seed: Sampling seed, to which the sample's index is added. If the library supports it, a
            sample gets the same answer in every run. None samples differently each time.
        prompt_logprobs: Whether to return the log-probabilities of each prompt's own tokens, for
            scorer perplexity, and to generate nothing. Options for generated tokens are then
            ignored.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 1
    ignore_eos: bool = False
    max_prompt_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    prompt_logprobs: bool = False

    @property
    def is_drawn(self) -> bool:
        return self.temperature > 0

    def generation(self, engine: str, *, num_beams: int = 1) -> Generation:
        """Check the options, and return the generation settings; errors name the engine."""
        most, least, cut = self.max_new_tokens, self.min_new_tokens, self.max_prompt_tokens
        logprobs_only = self.prompt_logprobs
        rules = (
            *self._sampling_rules(),
            ("max_new_tokens", most, is_count(most), "at least 1"),
            ("min_new_tokens", least, 0 <= least <= most, f"from 0 to max_new_tokens = {most}"),
            ("max_prompt_tokens", cut, cut is None or is_count(cut), "at least 1"),
            ("prompt_logprobs", logprobs_only, type(logprobs_only) is bool, "true or false"),
        )
        require_options(f"engine {engine}", rules)
        settings = {f.name: getattr(self, f.name) for f in fields(TextOptions)}
        unused = [name for name in DRAWING if not self.is_drawn and settings[name] != DRAWING[name]]
        if unused or (self.is_drawn and num_beams > 1):
            names = " and ".join(unused) or "num_beams"
            raise SuiteError(
                f"engine {engine}: temperature = {self.temperature:g} "
                + (
                    f"does not sample tokens, so {names} would have no effect; leave {names} out, "
                    "or set temperature above 0"
                    if unused
                    else "samples tokens, but beam search does not; leave num_beams out, or set "
                    "temperature = 0"
                ),
                option=unused or ("num_beams", "temperature"),
            )
        if logprobs_only and (self.is_drawn or num_beams > 1):
            name = "temperature" if self.is_drawn else "num_beams"
            raise SuiteError(
                f"engine {engine}: prompt_logprobs = true generates no tokens, so {name} would "
                f"have no effect; leave {name} out",
                option=("prompt_logprobs", name),
            )
        if logprobs_only:  # libraries and servers generate at least one token
            settings |= {"max_new_tokens": 1, "min_new_tokens": 1, "ignore_eos": True}
        return Generation(**settings, num_beams=num_beams)

    def _sampling_rules(self) -> Iterator[Rule]:
        heat, share, count, seed = self.temperature, self.top_p, self.top_k, self.seed
        yield "temperature", heat, 0 <= heat < math.inf, "a number of at least 0"
        yield "top_p", share, 0 < share <= 1, "above 0 and at most 1"
        yield "top_k", count, count is None or is_count(count), "a number of tokens, at least 1"
        is_valid = seed is None or (is_count(seed + 1) and seed < SEEDS)
        yield "seed", seed, is_valid, f"a whole number from 0 to {SEEDS - 1}"


@dataclass(frozen=True, kw_only=True)
class Generation(TextOptions):
    """Define how text is generated: greedily, by beam search, or by sampling.

    Attributes:
        num_beams: Number of beams; 1 is greedy.
        eos: End tokens of the loaded model. An answer includes its end token, which counts towards
            `max_new_tokens`.
    """

    num_beams: int = 1
    eos: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer; () if end tokens are ignored."""
        return () if self.ignore_eos else self.eos

    @property
    def padding(self) -> int:
        """Token to put in masked positions."""
        return self.eos[0] if self.eos else 0

    def prompts(
        self,
        dataset: Dataset,
        tokenizer: Any,
        vocabulary: int | None,
        *contexts: int | None,
        chats: Chats | None = None,
        clips: SpeechClips | None = None,
    ) -> TokenPrompts:
        """Return prompts that are checked against vocabulary size and context lengths, if known."""
        has_media = chats is not None or clips is not None
        if self.max_prompt_tokens is not None and has_media:
            problem = "cuts text prompts, but the data set has chats or audio clips; leave it out"
            raise SuiteError(f"max_prompt_tokens {problem}", option="max_prompt_tokens")
        if self.prompt_logprobs and has_media:
            problem = "needs prompts of text or token ids, but the data set has chats or audio"
            advice = "use data set windows, or leave prompt_logprobs out"
            raise SuiteError(f"prompt_logprobs {problem}; {advice}", option="prompt_logprobs")
        return TokenPrompts(
            dataset=dataset,
            tokenizer=tokenizer,
            vocabulary=vocabulary or ANY_TOKEN,
            context=min((context for context in contexts if context is not None), default=None),
            max_new_tokens=self.max_new_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            chats=chats,
            clips=clips,
        )

    def of(self, length: int | None) -> Generation:
        """Return the settings for a sample with this answer length; None keeps the settings."""
        if length is None:
            return self
        return replace(self, max_new_tokens=length, min_new_tokens=min(self.min_new_tokens, length))

    def check_lengths(self, dataset: Dataset) -> bool:
        """Return whether the data set states answer lengths; raise RunError if one is too long."""
        samples = range(len(dataset))
        if not samples or own_length(dataset, 0) is None:
            return False
        longest = max(own_length(dataset, index) or 0 for index in samples)
        if longest > self.max_new_tokens:
            raise engine_error(
                f"the data set asks for answers of up to {longest} tokens, but max_new_tokens = "
                f"{self.max_new_tokens}; set max_new_tokens to at least {longest}"
            )
        return True

    def describe(self) -> Mapping[str, str]:
        cut = self.max_prompt_tokens
        if self.prompt_logprobs:  # other options have no effect, so that engines are comparable
            cuts = {} if cut is None else {"generation.max_prompt_tokens": str(cut)}
            return {"generation.prompt_logprobs": "true", **cuts}
        return {
            "generation.max_new_tokens": str(self.max_new_tokens),
            "generation.min_new_tokens": str(self.min_new_tokens),
            "generation.num_beams": str(self.num_beams),
            "generation.ignore_eos": str(self.ignore_eos).lower(),
            "generation.eos": ",".join(map(str, self.eos)) or "none",
            **({} if cut is None else {"generation.max_prompt_tokens": str(cut)}),
            **(
                {f"generation.{name}": _in_words(getattr(self, name)) for name in SAMPLING}
                if self.is_drawn
                else {}
            ),
        }

    def packed(self, ids: Sequence[int], finish: str | None) -> bytes:
        """Serialise an answer as int64; append an end token unless `finish` is "length"."""
        if self.ends and finish != "length" and (not ids or ids[-1] not in self.ends):
            ids = [*ids, self.ends[0]]
        return packed(ids)

    def seed_of(self, index: int) -> int | None:
        """Return a sample's sampling seed, (seed + index) modulo `SEEDS`; None without a seed."""
        return None if self.seed is None else (self.seed + index) % SEEDS

    def cut(self, row: Sequence[int]) -> Tokens:
        """Return a row of tokens up to and including its first end token; all of it without one."""
        ends = (position for position, token in enumerate(row, 1) if token in self.ends)
        return row[: next(ends, None)]


def packed(ids: Sequence[int]) -> bytes:
    """Return token ids in the format that scorers read: int64, little-endian."""
    return struct.pack(f"<{len(ids)}q", *ids)


def logprobs_output(index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """Serialise a prompt's log-probabilities by `pack_logprobs`; the first token's is ignored."""
    if len(logprobs) != len(tokens):
        raise refused_sample(
            index,
            f"has {len(tokens)} tokens, but {len(logprobs)} log-probabilities were returned: "
            "the library or the server changed the prompt",
        )
    for number, logprob in enumerate(logprobs[1:], 1):
        if not -math.inf < logprob <= MAX_LOGPROB:
            raise refused_sample(
                index,
                f"has the log-probability {logprob:g} for its token {number}: the model's numbers "
                "overflow or its weights are damaged",
            )
    return pack_logprobs(tokens, [math.nan, *logprobs[1:]])


MAX_LOGPROB = 1e-3
"""Maximum log-probability; rounding may exceed 0."""


def refuse_times(generation: Generation, engine: str, sink: Sink) -> None:
    """Raise SuiteError if `sink` times tokens but `generation` makes none (prompt_logprobs)."""
    if generation.prompt_logprobs and sink.times_tokens:
        raise SuiteError(
            f"engine {engine}: prompt_logprobs = true generates no tokens that could be timed; set "
            "tokens = false in [workload], or leave prompt_logprobs out",
            option="prompt_logprobs",
        )


def _in_words(value: float | None) -> str:
    return "none" if value is None else f"{value:.12g}"


class EndWatch:
    """Raise RunError if each of the first answers reaches its length limit without an end token."""

    def __init__(self, generation: Generation, *, watching: bool, check: str) -> None:
        self._most = generation.max_new_tokens
        self._check = check
        self._lock = threading.Lock()
        self._watching = watching
        self._endless = 0
        self._watched = MAX_ENDLESS_SAMPLES

    def expect(self, samples: int) -> None:
        """Watch the first `samples` answers, at most 32; raise later if none has an end token."""
        self._watched = min(MAX_ENDLESS_SAMPLES, samples)

    def note(self, ended: Iterable[bool]) -> None:
        """Record whether answers had an end token; stop watching after the first that had one."""
        if not self._watching:
            return
        with self._lock:
            for has_ended in ended:
                if has_ended:
                    self._watching = False
                    return
                self._endless += 1
                if self._endless >= self._watched:
                    raise engine_error(
                        f"none of the first {self._watched} samples ended within max_new_tokens = "
                        f"{self._most}; set max_new_tokens higher, check {self._check}, or set "
                        "ignore_eos = true to measure fixed lengths",
                    )


class Answers:
    """Report finished samples to LoadGen's sink; thread-safe."""

    def __init__(
        self,
        generation: Generation,
        *,
        check_ends: bool,
        output: Callable[[int, Tokens], bytes] | None = None,
    ) -> None:
        """Set the encoder (None: int64); `check_ends`: raise if early answers lack end tokens."""
        self._generation = generation
        self._output = output or (lambda _, row: packed(row))
        self._counts, self._lock = Counter[str](), threading.Lock()
        eos = ", ".join(map(str, generation.eos))
        watching = check_ends and bool(generation.ends)
        check = f"eos_token_id ({eos}) of the model"
        self._watch = EndWatch(generation, watching=watching, check=check)
        self.expect = self._watch.expect

    def deliver(
        self, ids: Sequence[int], indices: Sequence[int], rows: Sequence[Tokens], sink: Sink
    ) -> None:
        """Report samples as completed; each row has generated tokens only, no prompt or padding."""
        outputs, counts = self.check_answers(indices, rows, sink)
        sink.ended(ids, self.reasons(rows))
        sink.done(ids, outputs, counts)

    def reasons(self, rows: Sequence[Tokens]) -> list[str]:
        ends = self._generation.ends
        return ["stop" if len(row) and row[-1] in ends else "length" for row in rows]

    def take_counts(self) -> Mapping[str, int]:
        """Return counts of answers by name since the last call, as `Engine.answer_counts` does."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def check_answers(
        self, indices: Sequence[int], rows: Sequence[Tokens], sink: Sink
    ) -> tuple[list[bytes] | None, list[int]]:
        """Refuse short answers; return (outputs, or None if `sink` wants none; token counts)."""
        counts = [len(row) for row in rows]
        empty = sum(not len(row) or row[0] in self._generation.ends for row in rows)
        with self._lock:
            self._counts.update(answers=len(rows), empty=empty)
        if sink.times_tokens and min(counts) < 2:
            least = self._generation.min_new_tokens
            advice = (
                f"the engine did not respect min_new_tokens = {least}: remove the sample, or "
                "set ignore_eos = true to measure fixed lengths"
                if least
                else "set min_new_tokens to at least 1"
            )
            index = indices[counts.index(min(counts))]
            raise too_short(self._generation, index, min(counts), advice)
        # If outputs are read, the scores judge text without an end.
        if not sink.wants_output:
            self._watch.note(row[-1] in self._generation.ends for row in rows)
            return None, counts
        pairs = zip(indices, rows, strict=True)
        return [self._output(index, row) for index, row in pairs], counts


def too_short(generation: Generation, index: int, tokens: int, advice: str) -> RunError:
    """Return the error for an answer with too few tokens to time them."""
    cause = f"the model ended its answer at once; {advice}"
    if generation.max_new_tokens < 2:
        cause = "max_new_tokens is 1; set it to at least 2"
    return refused_sample(
        index,
        f"got an answer of {tokens} token{'s' * (tokens != 1)}, but LoadGen needs at least 2 to "
        f"time tokens: {cause}",
    )
