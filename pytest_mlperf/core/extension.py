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
    """Receive an engine's progress; callable from any thread that outlives the run.

    Optional members: `session(id)` returns a text that the samples of one conversation share and
    that is unique over all runs; "" for a sample without a conversation. `may_fail` is the share of
    requests that may fail. If `may_fail` is above 0, report a failed sample by `ended` and then
    `lost(ids)`, instead of `done`.
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
        """Report one more token for each of these sample ids, after its first (optional)."""
        ...

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """Report how these answers were streamed, just before `done` (optional; language models).

        Without this report, all tokens of an answer except the first count as received after it.

        Args:
            ids: The ids given to `submit`.
            after_first: Number of tokens that a user received after the first message of each
                answer; 0 for an answer of one message, None if the messages came together and
                their spacing is unknown.
            hidden: Number of tokens in `n_tokens` that the user does not receive, such as hidden
                reasoning; None if unknown.
        """
        ...

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Report why these samples ended, just before `done` or `failed` (optional).

        Args:
            ids: The ids given to `submit`.
            reasons: "stop" or "length" for answers, as in OpenAI's API; the kind of a failure.
            prompt_tokens: Length of each prompt, None if unknown.
        """
        ...

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Pass further input for the scorer, just before `done` (optional).

        MLPerf's log holds only outputs; artefacts are stored in an archive next to the log. They
        are ignored unless `wants_output`.

        Args:
            ids: The ids given to `submit`, each once.
            artefacts: For each id a table of bytes by name, such as {"tool_calls": b"[]"}.
        """
        ...

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Report that these samples are finished; report every id exactly once, in any order.

        Args:
            ids: The ids given to `submit`, one or many.
            outputs: One bytes object per id; required if `wants_output`.
            n_tokens: Length of each answer, its end token included; required if `times_tokens`.
        """
        ...

    def failed(self, error: BaseException) -> None:
        """Report that the engine cannot go on: the run ends as ERROR with this exception."""
        ...


class Dataset(Protocol):
    """Provide samples by index; created by `factory(path=..., **options)` in the worker process.

    Optional members:
    `group(index)`: the article, document or conversation of a sample, as a text or whole number;
    None without a group. Samples of one group may change together, so accuracy is then judged by
    groups; otherwise samples count as independent.
    `sizes(indices)`: mean sizes by name over these samples, which determine their work.
    `arrival_s(index)`: request time in a recorded trace [s], ascending.
    `output_tokens(index)`: requested length of the answer, None for the engine's option; engines
    that cannot request a length per sample refuse such a data set.
    `pause_s(index)`: pause between the answer to the previous sample and this request [s]; None for
    the first turn of a conversation. The turns of a conversation are successive samples.
    `in_order`: True if LoadGen's performance runs take samples cyclically, not at random.
    `look(path=..., **options)`: a class method that checks options and files.

    Raises:
        SuiteError: An option is wrong.
        UnavailableError: A file is missing.
        EnvironmentFault: A library is missing.
        RunError: The content is malformed.
        IndexError: An index is outside of the set.
    """

    @property
    def digest(self) -> str:
        """Hex SHA-256 over the content as the engine sees it."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def input(self, index: int) -> Any:
        """Return the engine's input for sample `index`."""
        ...

    def reference(self, index: int) -> Any:
        """Return the ground truth of sample `index`, as the scorer takes it."""
        ...


class Engine:
    """Base class of engines; every method but `__init__` and `submit` has a default.

    Built as `factory(dataset=..., model=..., precision=..., **options)` in the worker process, so
    the keyword parameters of `__init__` are the engine's options. Alternatively the class attribute
    `options` is a frozen dataclass with a line for each option under "Attributes:"; `__init__` then
    takes `**options` and builds one. The module of a registered engine must import quickly: import
    the engine's library in `__enter__`.

    Optional members, used before a run: `libraries`, modules that the engine always imports;
    `optional_libraries`, modules that some options need; `install`, how to install the libraries;
    `precisions`, the valid precisions; `check_library()`, a class method that tries the libraries;
    `require()`, which tries those for the given options; `reach()`, which checks that the server
    answers; `checkpoints`, the precisions that the engine loads, by a builder's format.
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
        """Return the options whose product is the GPUs per process; {} for 1, None if unknown."""
        del options
        return None

    @classmethod
    def works_on(cls, options: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the option that sets the device, and the device ("cuda:N"); None if unknown."""
        del options
        return None

    @classmethod
    def clients(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client processes, among which the samples are divided."""
        del options
        return 1

    def __enter__(self) -> Self:
        """Load the model; may take minutes."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the resources of `__enter__`."""

    def load_samples(self, indices: Sequence[int]) -> None:
        """Load these samples into memory; LoadGen does not time this."""

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Release these samples."""

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Start work on samples; return at once, or complete inline through `sink.done`.

        Args:
            ids: LoadGen's ids of the samples, to be handed back to `sink.done`.
            indices: The data set index of each id.
            sink: Receiver of the progress.
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
        """Measure a point of a curve with the harness; only for engines with `harness`.

        Args:
            concurrency: Requests in flight.
            settings: Length, seeds and whether tokens are counted.
            folder: Folder of the result, which the engine creates.
            alive: To be called at each sign of progress.
            scored: Whether the harness scores this point, the one of its region that it scores.
        """
        raise NotImplementedError

    def client_lateness(self) -> Mapping[str, float]:
        """Return the delays of a client engine since the last call [s]; {} if it is unknown.

        Keys are "issue_p50", "issue_p90", "issue_p99": percentiles of the time from `submit` to
        the start of a sample's request; and "loop_p50" to "loop_p99": from the arrival of data
        to its handling.
        """
        return {}

    def null_client(self, tokens: int) -> AbstractContextManager[Engine] | None:
        """Return this client with a server that computes nothing, to measure its highest rate.

        The returned engine answers the loaded samples while the context manager is open; this
        engine has no sample in flight then. None if unsupported.

        Args:
            tokens: Tokens of every answer.
        """
        del tokens
        return None

    def event_loop(self) -> AbstractEventLoop | None:
        """Return the event loop of the engine after loading; None if it has no event loop.

        A client process then communicates on that loop, and calls `submit` on the loop's thread.
        """
        return None

    def accepted_drafts(self) -> int | None:
        """Return the accepted draft tokens since the last call; None if unknown."""
        return None

    def answer_counts(self) -> Mapping[str, int]:
        """Return counts of the answers since the last call; {} if unknown.

        "answers": all answers of a language model
        "empty": answers without text and tool calls
        "cut_reasoning": empty answers that reached their token limit while reasoning
        "refused": refusals; "bad_calls": answers with a tool call that is not JSON, if stored
        "prompt_tokens", "expected_tokens": the server's count for prompts of known length, and that
        "cached_tokens", "cacheable_tokens": prefix cache hits, and prompt tokens of these answers
        "unsized_answers", "unsized_messages", "unsized_tokens": answers whose first message has
        an unknown number of tokens, with their messages and tokens
        "build NAME": answers by the server's name for its set-up
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
        """Return recounted tokens by sample, (all, after the first); None without a recount."""
        return None

    def describe(self) -> Mapping[str, str]:
        """Return versions and settings that belong to the fingerprint, e.g. library and weights."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Hold the result of a scorer.

    Attributes:
        per_sample: By metric one score per sample in the given order, 0–100 unless the metric has
            its own scale; None if the metric does not apply to the sample. Their mean (sum for a
            count) is the aggregate, up to the rounding of printed figures.
        aggregate: By metric the figure that MLPerf's reference script prints. A metric without
            scores per sample is compared with a gate, but not with the baseline.
        lower: Metrics that are better when lower, e.g. FID.
        whole: Metrics that only a whole data set has, e.g. mAP: the score of a sample is then its
            pseudo-value, aggregate + samples x the sample's influence on it.
        leverage: `Leverage` by metric in `whole`; if missing, pseudo-values show all variance.
        chance: Expected score of guessing by metric, 0–100.
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
    model (with a language model's tokenizer) or None. Errors are those of `Dataset`.

    A scorer that needs more than outputs lists in `artefacts` the names that engines must attach to
    every sample, see `Sink.attach`. `score` then gets a third sequence: the artefacts of each
    sample, bytes by name.
    """

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs against references of the same samples."""
        ...


Prompts = Sequence[Any]
"""Token ids, each a sequence, for a language model; captions for a pipeline of diffusers."""

Progress = Callable[[int, int, str], None]
"""Takes the steps done, their total, and their noun: (3, 64, "samples")."""


class Builder:
    """Base class of builders, which write a quantised checkpoint of a model once.

    Created by `factory(recipe=..., **options)` in a separate process, perhaps in another Python
    with only this package's code. `__init__` raises for an invalid recipe or option. `__init__` and
    the module use only the standard library; `build` imports the libraries.

    Attributes:
        libraries: Modules that `build` imports.
        distributions: Packages whose versions determine the checkpoint, the builder's own first;
            another version makes another checkpoint.
        format: Name of the checkpoint format, as in `Engine.checkpoints`; "" if any engine may try
            to load it.
        precision: Required precision of an engine entry with this recipe; None for any.
        calibrates: Whether the recipe reads samples.
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

        A model has config.json. A pipeline has model_index.json and is written with all its parts.

        Args:
            source: Folder of the model; it must not be changed.
            target: An empty folder. Files of `source` that are neither weights nor written here,
                such as the tokenizer's, are copied afterwards.
            prompts: Calibration input: token ids, or a pipeline's captions; empty unless
                `calibrates`.
            progress: Called with the progress; output to stdout and stderr counts as progress too.

        Returns:
            Further parts of the fingerprint: how weights were quantised, and how many.
        """
        raise NotImplementedError


def own_length(dataset: Dataset, index: int) -> int | None:
    """Return the answer length that the data set requests, or None; RunError if it is invalid."""
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
