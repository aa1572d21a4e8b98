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

    Optional members: `session(id)` returns a text shared by the samples of one conversation in
    flight and unique over all runs, "" for a single sample. `may_fail` is the share of requests
    that may fail; if it is above 0, `lost(ids)` takes failed samples, after `ended`, instead of
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
        """Report that each of these samples has one more token, after its first (optional)."""
        ...

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """Report how these answers were streamed, just before `done` (optional; language models).

        Without it every token after an answer's first one counts as received after that one.

        Args:
            ids: The ids given to `submit`.
            after_first: Tokens that a user received after the first message of each answer; 0 for
                an answer of one message, None if its messages came together: their spacing is then
                unknown.
            hidden: Tokens in `n_tokens` that the user does not receive, such as hidden reasoning;
                None if their number is unknown.
        """
        ...

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Report why these samples ended, just before `done` or `failed` (optional).

        Args:
            ids: The ids given to `submit`.
            reasons: For answers "stop" or "length", as in OpenAI's API; for failures the kind.
            prompt_tokens: Length of each prompt, None if unknown.
        """
        ...

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Pass a scorer's further input, just before `done` (optional).

        MLPerf's log takes only outputs; artefacts are stored in an archive next to it. They are
        ignored unless `wants_output`.

        Args:
            ids: The ids given to `submit`, each once.
            artefacts: For each id a table of bytes by name, such as {"tool_calls": b"[]"}.
        """
        ...

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Report that these samples are finished; every id exactly once, in any order.

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
    """Provide samples by index; built as `factory(path=..., **options)` in the worker process.

    Optional members:
    `group(index)`: the article, document or conversation of a sample, as a text or whole number;
    None without a group. Samples of one group may change together, so accuracy is then judged by
    groups; otherwise samples count as independent.
    `sizes(indices)`: means that determine the work of a sample.
    `arrival_s(index)`: request time in a recorded trace [s], ascending.
    `output_tokens(index)`: requested length of the answer, None for the engine's option; engines
    that cannot request single lengths refuse it.
    `pause_s(index)`: for the turns of a conversation, which are successive samples: pause after the
    answer to the sample before [s]; None for a first turn.
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

    Optional members, used before a run: `libraries`, modules that it always imports;
    `optional_libraries`, modules that some options need; `install`, how to install them;
    `precisions`, the valid words; `check_library()`, a class method that tries its libraries;
    `require()`, which does so for the given options; `reach()`, which looks for a server that
    should run; `checkpoints`, the precisions that it loads by format of a builder.
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
    def parallelism(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - for those that override it
    ) -> Mapping[str, Any] | None:
        """Return the options whose product is the GPUs per process; {} for one, None if unknown."""
        return None

    @classmethod
    def works_on(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - for those that override it
    ) -> tuple[str, str] | None:
        """Return an option and its device ("cpu", "cuda", "cuda:N"); None if unknown."""
        return None

    @classmethod
    def clients(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - for those that override it
    ) -> int:
        """Return the number of client processes, each with its share of the samples."""
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

        Percentiles by name: "issue_p99" from `submit` to the start of a sample's request,
        "loop_p99" from the arrival of data to its handling; p50 and p90 in the same way.
        """
        return {}

    def null_client(self, tokens: int) -> AbstractContextManager[Engine] | None:
        """Return this client on a server that computes nothing, to measure its highest rate.

        It answers the loaded samples while it is open and the engine itself has none in flight.
        None if unsupported.

        Args:
            tokens: Tokens of every answer.
        """
        del tokens
        return None

    def event_loop(self) -> AbstractEventLoop | None:
        """Return the event loop on which it works after loading; None without one.

        A client process then communicates on it, and calls `submit` on its thread.
        """
        return None

    def accepted_drafts(self) -> int | None:
        """Return the accepted draft tokens since the last call; None if unknown."""
        return None

    def answer_counts(self) -> Mapping[str, int]:
        """Return counts of the answers since the last call; {} if unknown.

        "answers": answers of a language model; "empty": those without text or calls;
        "cut_reasoning": empty ones that reached their token limit while reasoning; "refused";
        "bad_calls": those whose tool calls are not JSON, if answers are kept (accuracy runs, and
        timed ones whose tokens are counted here); "prompt_tokens": the server's count for prompts
        of known length; "expected_tokens": that length; "cached_tokens": hits of the server's
        prefix cache among "cacheable_tokens"; "unsized_answers": answers whose first message has an
        unknown number of tokens, with their "unsized_messages" and "unsized_tokens"; and "build …"
        by the server's name of the set-up that answered.
        """
        return {}

    def stage_seconds(self) -> Mapping[str, float]:
        """Return the time of stages since the last call [s], by name; {} if unknown.

        A name, as "prefill" or "unet", is a small letter and up to 31 small letters, digits and
        "_"; 16 stages at most. Stages of a process do not overlap, so that the sum is at most the
        elapsed time; a batch counts once. In a timed run each becomes the metric `stage_NAME`,
        seconds per sample.
        """
        return {}

    def metrics_pages(self) -> Sequence[str] | None:
        """Return addresses of its server's Prometheus pages after loading; None if unknown."""
        return None

    def counted_again(self) -> Mapping[int, tuple[int, int]] | None:
        """Return recounted tokens per sample since the last call: all, and after the first."""
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
        aggregate: By metric the figure that MLPerf's reference script prints; one without scores
            per sample is reported and held against a gate, not against the baseline.
        lower: Metrics that are better when lower, e.g. FID.
        whole: Metrics that only a whole data set has, e.g. mAP: the score of a sample is then its
            pseudo-value, aggregate + samples x the sample's influence on it.
        leverage: For such metrics, the part of chance in the pseudo-values; all without it.
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

    Built as `factory(model=..., **options)` in a process of its own; `model` is the workload's
    model (with a language model's tokenizer) or None. Errors are those of `Dataset`.

    A class that scores more than outputs lists in `artefacts` the names that engines must attach to
    every sample, see `Sink.attach`. `score` then gets a third sequence: for each sample a table of
    its artefacts, bytes by name.
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

    Built as `factory(recipe=..., **options)` in a process of its own, perhaps in another Python
    with only this package's code. `__init__` raises for an invalid recipe or option; it and the
    module use only the standard library, because libraries are imported in `build`.

    Attributes:
        libraries: Modules that `build` imports.
        distributions: Packages whose versions determine the result, the builder's own first;
            another version is another build.
        format: Engines' name of the checkpoint format, see `checkpoints` of an engine; "" if any
            engine may try.
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

        A model has config.json; a pipeline has model_index.json, and is written with all its parts.

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
        f"sample {index} of the data set has output_tokens {reprlib.repr(length)}; a whole number "
        "from 1 on, or None where the engine's option decides, is needed",
    )


def is_speech(dataset: Dataset) -> bool:
    """Check whether a data set's samples are audio clips."""
    sample = dataset.input(0) if len(dataset) else None
    return isinstance(sample, Mapping) and "audio" in sample
