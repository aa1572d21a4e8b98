"""What extensions are: engines with the sink they answer to, data sets, scorers, builders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from pathlib import Path


class Sink(Protocol):
    """Where an engine reports its progress; callable from any thread that outlives the run."""

    wants_output: bool
    """True in accuracy runs: `done` must then be given outputs. False: outputs are not read."""

    times_tokens: bool
    """True where tokens are timed: `first_tokens` must come before `done`, and `n_tokens` with it.

    `next_tokens` is then read too, and may be left out by an engine that sees no single token.
    """

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Report that the first token of each of these samples is there (language models)."""
        ...

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Report that each of these samples has one more token, after its first (optional)."""
        ...

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Report that these samples are finished; every id exactly once, in any order.

        Args:
            ids: The ids given to `submit`, one or many.
            outputs: One bytes object per id; required where `wants_output`.
            n_tokens: Output tokens per id: counted where given, required where `times_tokens`.
        """
        ...

    def failed(self, error: BaseException) -> None:
        """Report that the engine cannot go on: the run ends as ERROR with this exception."""
        ...


class Dataset(Protocol):
    """Samples by index; built as `factory(path=..., **options)` inside the worker process."""

    @property
    def digest(self) -> str:
        """Hex SHA-256 over the content as the engine sees it."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def input(self, index: int) -> Any:
        """Return what the engine takes for sample `index`."""
        ...

    def reference(self, index: int) -> Any:
        """Return the ground truth of sample `index`, as the scorer takes it."""
        ...


class Engine:
    """Base class of engines; every method but `submit` has a sensible default.

    Built as `factory(dataset=..., model=..., precision=..., **options)` inside the worker process,
    so the keyword-only parameters of `__init__` are the engine's options. The module of a
    registered engine must be light: import the engine's library in `__enter__`.

    A class may further say, for what is known before a run: `libraries`, names of modules that it
    imports whatever its options; `install`, what to do where they are not; `check_library()`, a
    class method that tries them; `require()`, which does so for the options given; `reach()`, which
    looks for a server that should run; `checkpoints`, by format of a builder the precisions that
    it loads.
    """

    @classmethod
    def check_gpus(cls, count: int, options: Mapping[str, Any]) -> None:
        """Refuse a number of GPUs that these options do not use; asked before anything is built.

        Raises:
            SuiteError: They use fewer, or need more; it says what to set.
        """

    def __enter__(self) -> Self:
        """Load the model; may take minutes."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free what `__enter__` took."""

    def load_samples(self, indices: Sequence[int]) -> None:
        """Bring these samples into memory; LoadGen does not time this."""

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples."""

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Start work on samples; return at once, or complete inline through `sink.done`.

        Args:
            ids: LoadGen's ids of the samples, to be handed back to `sink.done`.
            indices: The data set index of each id.
            sink: Where to report.
        """
        raise NotImplementedError

    def client_lateness(self) -> Mapping[str, float]:
        """Return how late an engine that is only a client was since it was last asked, seconds.

        Percentiles by name: "issue_p99" from `submit` to the start of a sample's request,
        "loop_p99" from what came in to its being seen, and p50 and p90 likewise. {}: it is no
        client, or nobody knows.
        """
        return {}

    def describe(self) -> Mapping[str, str]:
        """Return versions and settings that belong to the fingerprint, e.g. library and weights."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a scorer found.

    Attributes:
        per_sample: For each metric, one score per sample, in the order given, 0–100 scale unless
            the metric says otherwise; None where the metric does not apply to the sample. Their
            mean is the aggregate, up to the rounding of what is printed.
        aggregate: For each metric, the figure MLPerf's reference script prints; one without scores
            per sample is reported and held against a gate, not against the baseline.
        lower: Metrics that are better when lower, e.g. FID; the others are better when higher.
        whole: Metrics that only a whole data set has, e.g. mAP: the score of a sample is then its
            pseudo-value, aggregate + samples x the sample's influence on it.
    """

    per_sample: Mapping[str, Sequence[float | None]]
    aggregate: Mapping[str, float]
    lower: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


class Scorer(Protocol):
    """Scores outputs as MLPerf's reference script does.

    Built as `factory(model=..., **options)` in a process of its own; `model` is the workload's
    model as the engine gets it (a language model's tokenizer lies there), or None.
    """

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs against references of the same samples."""
        ...


class Builder:
    """Base class of builders: they write a quantised checkpoint of a model, once.

    Built as `factory(recipe=..., **options)` in a process of its own, perhaps in another Python
    that has nothing of this package but its code. `__init__` refuses a recipe or an option that
    means nothing; it and the module need the standard library alone: libraries are imported in
    `build`.

    Attributes:
        libraries: Modules that `build` imports.
        distributions: Packages whose versions decide the result, the builder's own first; another
            version of one is another build.
        format: What engines call the format of its checkpoints, see `checkpoints` of an engine; "":
            any engine may try.
        precision: What an engine entry with this recipe must call its precision; None: anything.
        calibrates: The recipe looks at samples.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    distributions: ClassVar[tuple[str, ...]] = ()
    format: ClassVar[str] = ""
    precision: str | None = None
    calibrates: bool = False

    def build(
        self,
        source: Path,
        target: Path,
        prompts: Sequence[Sequence[int]],
        progress: Callable[[int, int, str], None],
    ) -> Mapping[str, str]:
        """Write a checkpoint that engines can load: config.json and safetensors, no pickles.

        Args:
            source: Folder of the model; it must not be changed.
            target: An empty folder. Files of `source` that are neither weights nor written here,
                such as the tokenizer's, are copied afterwards.
            prompts: Token ids to look at; empty unless `calibrates`.
            progress: Takes what is done, of how many, and of what: (3, 64, "samples"). Output to
                stdout and stderr counts as progress too.

        Returns:
            What belongs to the fingerprint beside versions and options: how weights were
            quantised, and how many.
        """
        raise NotImplementedError
