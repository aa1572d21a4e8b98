"""Define the interfaces of extensions: engines and sinks, data sets, scorers, builders."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.judge.inputs import Leverage

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from pathlib import Path

    from pytest_mlperf.core.job import LoadGenSettings


REPLICA_NUMBER = "PYTEST_MLPERF_REPLICA"
"""Environment variable with the number of an engine's process, from 0."""


Counts = Sequence[int | None] | None
"""One count per id, None if unknown; None if nothing is counted."""

Outputs = Sequence[bytes] | None
"""One output per id, if the run requests outputs."""


class Sink(Protocol):
    """Receive an engine's progress; call it only from threads that live until the run ends.

    Optional members: `session(id)` returns a key of a sample's conversation, unique over all runs;
    "" if the sample has no conversation. `may_fail` is the share of requests that may fail. If
    `may_fail` is above 0, report a failed sample with `ended` and then `lost(ids)`, not with
    `done`.
    """

    wants_output: bool
    """Whether `done` must be given outputs, as in accuracy runs; otherwise they are ignored."""

    times_tokens: bool
    """Whether tokens are timed: `first_tokens` must precede `done`, which needs `n_tokens`."""

    needs_first_tokens: bool
    """Whether LoadGen requires both; in Offline they are optional and stored elsewhere."""

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Report that the first token of each of these samples has arrived (language models)."""
        ...

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Report that each of these samples got one more token after its first (optional)."""
        ...

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """Report how these answers were streamed, just before `done` (optional; language models).

        Without this report, all tokens of an answer except the first count as received after it.

        Args:
            after_first: Number of tokens that a user received after the first message of each
                answer; 0 for an answer of one message, None if the messages came together and their
                spacing is unknown.
            hidden: Number of tokens in `n_tokens` that the user does not receive, such as hidden
                reasoning; None if unknown.
        """
        ...

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Report why these samples ended, just before `done` or `failed` (optional).

        Args:
            reasons: "stop" or "length" for answers, as in OpenAI's API, else the kind of failure.
            prompt_tokens: Number of tokens of each prompt; None if unknown.
        """
        ...

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Pass artefacts, which are further input of the scorer, just before `done` (optional).

        MLPerf's log holds only outputs, so artefacts are stored in an archive next to the log. They
        are ignored if `wants_output` is false.

        Args:
            ids: The ids given to `submit`, each once.
            artefacts: For each id, bytes by artefact name, such as {"tool_calls": b"[]"}.
        """
        ...

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Report that these samples are finished; report every id exactly once, in any order.

        Args:
            outputs: One bytes object per id; required if `wants_output` is true.
            n_tokens: Tokens of each answer with its end token; required if `times_tokens` is true.
        """
        ...

    def failed(self, error: BaseException) -> None:
        """Report that the engine cannot continue: the run ends as ERROR with this exception."""
        ...


class Dataset(Protocol):
    """Provide samples by index; created by `factory(path=..., **options)` in the worker process.

    Optional members:
    `group(index)`: the article, document or conversation of a sample, as a text or whole number;
    None without a group. Scores in a group may be correlated, so the accuracy test then uses
    groups; without groups samples count as independent.
    `sizes(indices)`: mean sizes of these samples by name, such as "input_tokens", for their FLOP.
    `arrival_s(index)`: request time in a recorded trace [s], ascending.
    `output_tokens(index)`: requested number of output tokens, None for the engine's option;
    engines that cannot set a length per sample reject such a data set.
    `pause_s(index)`: pause between the answer to the previous sample and this request [s]; None for
    the first turn of a conversation. The turns of a conversation are successive samples.
    `in_order`: True if LoadGen's performance runs issue samples in cyclic order, not at random.
    `look(path=..., **options)`: a class method that checks options and files before a run.

    Raises:
        SuiteError: An option is wrong.
        UnavailableError: A file is missing.
        EnvironmentFault: A library is missing.
        RunError: The content is malformed.
        IndexError: An index is out of range.
    """

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the content that the engine gets."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def input(self, index: int) -> Any:
        """Return the engine's input for sample `index`."""
        ...

    def reference(self, index: int) -> Any:
        """Return the ground truth of sample `index` in the form that the scorer expects."""
        ...


class Engine:
    """Base class of engines; every method but `__init__` and `submit` has a default.

    Built as `factory(dataset=..., model=..., precision=..., **options)` in the worker process, so
    the keyword parameters of `__init__` are the engine's options. Alternatively the class attribute
    `options` is a frozen dataclass that documents each option under "Attributes:"; `__init__` then
    takes `**options` and creates an instance. The module of a registered engine must import
    quickly: import the engine's library in `__enter__`.

    Optional members, used before a run: `libraries`, modules that the engine always imports;
    `optional_libraries`, modules that some options need; `install`, how to install the libraries;
    `precisions`, the valid precisions; `check_library()`, a class method that checks the libraries;
    `require()`, which checks those that the given options need; `reach()`, which checks that the
    server answers; `checkpoints`, the precisions that the engine loads, by a builder's format.
    """

    first_suite: ClassVar[str] = ""
    """Parts to edit in `first_suite.toml`, which `init --engine NAME` writes; "" without the
    file."""

    client: ClassVar[bool] = False
    """Whether it works through a server, which has replicas of its own."""

    timed: ClassVar[bool] = True
    """Whether speed is measured; False if answers are recorded, so that only they are judged."""

    harness: ClassVar[str] = ""
    """Name of the harness whose `measure_point` replaces the worker's loop; "" without. Its Python
    or command comes as the option `client`; the engine runs in this Python."""

    @classmethod
    def parallelism(cls, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return options whose product is the GPU count per process; {} for 1, None if unknown."""
        del options
        return None

    @classmethod
    def works_on(cls, options: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return (name of the option that selects the device, device "cuda:0"), None if unknown."""
        del options
        return None

    @classmethod
    def clients(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client processes that share the samples."""
        del options
        return 1

    def __enter__(self) -> Self:
        """Load the model, which may take minutes."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the resources that `__enter__` allocated."""

    def load_samples(self, indices: Sequence[int]) -> None:
        """Load these samples into memory; LoadGen does not time this."""

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Release these samples from memory."""

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Start work on samples and return at once, or complete them here through `sink.done`.

        Args:
            ids: LoadGen's ids of the samples, to be passed to `sink.done`.
            indices: The data set index of each id.
            sink: Object to which the engine reports progress.
        """
        raise NotImplementedError

    def measure_point(
        self,
        concurrency: int,
        settings: LoadGenSettings,
        folder: Path,
        alive: Callable[[], None],
        *,
        scored: bool,
    ) -> None:
        """Measure a curve at one concurrency with an external harness, see `harness`.

        Args:
            concurrency: Requests in flight.
            settings: Duration, seeds and whether tokens are counted.
            folder: Folder for the result; the engine creates it.
            alive: Function to call on each progress.
            scored: Whether the harness also measures accuracy here; it does so once per region of
                the curve.
        """
        raise NotImplementedError

    def client_lateness(self) -> Mapping[str, float]:
        """Return the delays of a client engine since the last call [s]; {} if unknown.

        Keys are "issue_p50", "issue_p90", "issue_p99": percentiles of the time from `submit` to the
        start of a sample's request; and "loop_p50" to "loop_p99": from the arrival of data to its
        handling.
        """
        return {}

    def null_client(self, tokens: int) -> AbstractContextManager[Engine] | None:
        """Return this client with a server that computes nothing, to find its highest rate.

        Every answer has `tokens` tokens. The returned engine answers the loaded samples inside the
        `with` block, while this engine has no sample in flight. None if unsupported.
        """
        del tokens
        return None

    def event_loop(self) -> AbstractEventLoop | None:
        """Return the event loop of the engine after loading; None if it has no event loop.

        A client process then communicates on that loop, and calls `submit` on the loop's thread.
        """
        return None

    def accepted_drafts(self) -> int | None:
        """Return the number of draft tokens accepted since the last call; None if unknown."""
        return None

    def answer_counts(self) -> Mapping[str, int]:
        """Return counts of the answers since the last call; {} if unknown.

        "answers": all answers of a language model
        "empty": answers without text and tool calls
        "cut_reasoning": empty answers that reached their token limit while reasoning
        "refused": refusals; "bad_calls": answers with a tool call that is not JSON, if stored
        "prompt_tokens", "expected_tokens": prompt tokens by the server's and the data set's count
        "cached_tokens", "cacheable_tokens": prefix cache hits, and all prompt tokens, in tokens
        "unsized_answers", "unsized_messages", "unsized_tokens": number, messages and tokens of the
        answers whose first message has an unknown number of tokens
        "build NAME": answers from the server build NAME, as the server reports it
        """
        return {}

    def stage_seconds(self) -> Mapping[str, float]:
        """Return the time of each stage since the last call [s], by name; {} if unknown.

        A name such as "prefill" or "unet" is a small letter and up to 31 small letters, digits and
        "_"; 16 stages at most. Stages of a process do not overlap, so their sum is at most the
        elapsed time. A batch counts once. In a timed run each stage becomes the metric
        `stage_NAME` [s per sample].
        """
        return {}

    def metrics_pages(self) -> Sequence[str] | None:
        """Return the URLs of the server's Prometheus pages after loading; None if unknown."""
        return None

    def counted_again(self) -> Mapping[int, tuple[int, int]] | None:
        """Recount output tokens; return {sample: (all, those after the first part)} or None."""
        return None

    def describe(self) -> Mapping[str, str]:
        """Return versions and settings that belong to the fingerprint, e.g. library and weights."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Hold the result of a scorer.

    Attributes:
        per_sample: Scores by metric, one per sample in the given order, 0–100 unless the metric has
            its own scale; None if the metric does not apply to the sample. Their mean (sum for a
            count) is the aggregate, up to rounding.
        aggregate: The figure that MLPerf's reference script prints, by metric. A metric without
            scores per sample is compared with a gate, but not with the baseline.
        lower: Metrics that are better when lower, e.g. FID.
        whole: Metrics that only a whole data set has, e.g. mAP: a sample's score is then its
            pseudo-value, aggregate + number of samples x the sample's influence on the aggregate.
        leverage: `Leverage` by metric of `whole`; without it, pseudo-values count as showing all
            variance.
        chance: Expected score of random guessing, 0–100, by metric.
    """

    per_sample: Mapping[str, Sequence[float | None]]
    aggregate: Mapping[str, float]
    lower: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    leverage: Mapping[str, Leverage] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)


class Scorer(Protocol):
    """Score outputs as MLPerf's reference script does.

    Created by `factory(model=..., **options)` in a separate process. `model` is the workload's
    model (with a language model's tokenizer) or None. It raises the same errors as `Dataset`.

    A scorer that needs more than outputs lists in `artefacts` the names that engines must attach to
    every sample, see `Sink.attach`. `score` then gets a third sequence: the artefacts of each
    sample, bytes by name.
    """

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs against the references of the same samples, in the same order."""
        ...


Prompts = Sequence[Any]
"""Token ids, each a sequence, for a language model; captions for a pipeline of diffusers."""

Progress = Callable[[int, int, str], None]
"""Takes the steps done, their total, and their noun: (3, 64, "samples")."""


class Builder:
    """Base class of builders, which write a quantised checkpoint of a model once.

    Created by `factory(recipe=..., **options)` in a separate process, possibly with a Python that
    has only this package's code. `__init__` raises for an invalid recipe or option. `__init__` and
    the module use only the standard library; `build` imports the libraries.

    Attributes:
        libraries: Modules that `build` imports.
        distributions: Packages, the builder's own first, of which another version makes another
            checkpoint.
        format: Name of the checkpoint format, as in `Engine.checkpoints`; "" if any engine may try
            to load it.
        precision: Precision that an engine entry with this recipe must have; None for any.
        calibrates: Whether the recipe needs calibration samples.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    distributions: ClassVar[tuple[str, ...]] = ()
    format: ClassVar[str] = ""
    precision: str | None = None
    calibrates: bool = False

    def build(
        self, source: Path, target: Path, prompts: Prompts, progress: Progress
    ) -> Mapping[str, str]:
        """Write a checkpoint that engines can load: safetensors and JSON, no pickles.

        A model has config.json. A pipeline has model_index.json and is written with all components.

        Args:
            source: Folder of the model; it must not be changed.
            target: An empty folder. Files of `source` that are neither weights nor written here,
                such as the tokenizer's, are copied afterwards.
            prompts: Calibration input: token ids, or captions for a pipeline; empty unless
                `calibrates` is true.
            progress: Called with the progress; output to stdout and stderr counts as progress too.

        Returns:
            Further parts of the fingerprint: quantisation method, number of quantised weights.
        """
        raise NotImplementedError


def own_length(dataset: Dataset, index: int) -> int | None:
    """Return a sample's requested answer length [tokens] or None; raise RunError if invalid."""
    ask = getattr(dataset, "output_tokens", None)
    length = ask(index) if callable(ask) else None
    if length is None or (type(length) is int and length >= 1):
        return length
    raise RunError(
        "engine",
        f"sample {index} of the data set has output_tokens {reprlib.repr(length)}; needed is "
        "a whole number of at least 1, or None if the engine's options decide",
    )


def is_speech(dataset: Dataset) -> bool:
    """Check whether a data set's samples are audio clips."""
    sample = dataset.input(0) if len(dataset) else None
    return isinstance(sample, Mapping) and "audio" in sample
