"""What extensions are: engines with the sink they answer to, data sets, scorers, builders."""

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
"""Variable that tells an engine in several processes which of them it is, from 0 on."""


Counts = Sequence[int | None] | None
"""One for each id, None where it is not known; None: nobody counts."""

Outputs = Sequence[bytes] | None
"""One for each id, where the run asks for any."""


class Sink(Protocol):
    """Where an engine reports its progress; callable from any thread that outlives the run.

    A sink may further have `session(id)`, which returns a text that the samples of one conversation
    under way have in common, and no other in any run. It is "" for a sample that is asked alone.
    It may have `may_fail`, the share of requests that may fail. Where that is above 0, `lost(ids)`
    takes those that did, after `ended`, in place of `done`.
    """

    wants_output: bool
    """True in accuracy runs: `done` must then be given outputs. False: outputs are not read."""

    times_tokens: bool
    """True where tokens are timed: `first_tokens` must come before `done`, and `n_tokens` with it.

    `next_tokens` is then read too, and may be left out by an engine that sees no single token.
    """

    needs_first_tokens: bool
    """True where LoadGen waits for them. False in Offline, where tokens are timed: both may be left
    out, and what is told is kept beside."""

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Report that the first token of each of these samples is there (language models)."""
        ...

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Report that each of these samples has one more token, after its first (optional)."""
        ...

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """Report how these answers were streamed, just before `done` (optional; language models).

        Without it every token after an answer's first one counts as seen after that one.

        Args:
            ids: The ids given to `submit`.
            after_first: Tokens that a user saw after the first message of each answer; 0 if the
                answer was one message, None if its messages came together: the time between them
                is then unknown.
            hidden: Tokens of each answer that are part of `n_tokens` and that nobody saw, as
                hidden reasoning; None if there are some, and their number is unknown.
        """
        ...

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Report why these samples end, just before `done` or `failed` (optional).

        Args:
            ids: The ids given to `submit`.
            reasons: Of answers "stop" or "length", as OpenAI's API has them; of what failed, the
                kind of failure.
            prompt_tokens: Length of each prompt, None where nobody counts it.
        """
        ...

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Give what a scorer needs beside the outputs, just before `done` (optional).

        The log of MLPerf gets outputs alone; artefacts lie in an archive beside it. They are read
        where `wants_output`, and dropped elsewhere.

        Args:
            ids: The ids given to `submit`, each once.
            artefacts: Of each id a table of bytes by name, such as {"tool_calls": b"[]"}.
        """
        ...

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Report that these samples are finished; every id exactly once, in any order.

        Args:
            ids: The ids given to `submit`, one or many.
            outputs: One bytes object per id; required where `wants_output`.
            n_tokens: Length of each answer, its end token included; required where `times_tokens`.
        """
        ...

    def failed(self, error: BaseException) -> None:
        """Report that the engine cannot go on: the run ends as ERROR with this exception."""
        ...


class Dataset(Protocol):
    """Samples by index; built as `factory(path=..., **options)` inside the worker process.

    A class may further have `group(index)`, which returns what a sample belongs to, such as its
    article, document or conversation, as a text or a whole number. None is no group. Samples
    of one group may change together, so accuracy is then judged by groups; without it all samples
    are taken as independent. And `sizes(indices)`, means that decide the work of a sample. And
    `arrival_s(index)`, of a recorded trace: when a request came, seconds, in ascending order. And
    `output_tokens(index)`, how long the answer to a sample is to be, None where the engine's
    options decide; engines that cannot ask for single lengths refuse it. And
    `pause_s(index)`, of conversations, whose turns follow each other as samples: how many seconds
    after the answer to the sample before it a turn is asked; None where it begins one. And
    `in_order`, True where LoadGen's performance runs are to ask samples one after the other, round
    and round, in place of those that LoadGen draws. And
    `look(path=..., **options)`, a class method that checks options and looks for files.

    What is wrong is raised by its kind: an option as SuiteError, a file that is not here as
    UnavailableError, a library as EnvironmentFault, content that is not as it should be as
    RunError, and an index outside of the set as IndexError.
    """

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
    """Base class of engines; every method but `__init__` and `submit` has a sensible default.

    Built as `factory(dataset=..., model=..., precision=..., **options)` inside the worker process,
    so the keyword parameters of `__init__` are the engine's options. A class with many may declare
    them in a frozen dataclass, its class attribute `options`, with a line for each under
    "Attributes:"; `__init__` then takes `**options` and makes one of them. The module of a
    registered engine must be light: import the engine's library in `__enter__`.

    A class may further say, for what is known before a run: `libraries`, names of modules that it
    imports whatever its options; `optional_libraries`, those that some options need; `install`,
    what to do where they are not; `precisions`, the words that it takes for them;
    `check_library()`, a class method that tries its libraries; `require()`, which does so for the
    options given; `reach()`, which looks for a server that should run; `checkpoints`, by format of
    a builder the precisions that it loads.
    """

    first_suite: ClassVar[str] = ""
    """What is to be edited in `first_suite.toml`, which lies beside the module of the engine and
    which `pytest-mlperf init --engine NAME` writes; "": there is none."""

    client: ClassVar[bool] = False
    """It works through a server, which has replicas of its own."""

    timed: ClassVar[bool] = True
    """False: its answers were given before, and where there is a scorer nothing but them is judged.
    """

    harness: ClassVar[str] = ""
    """Who measures points of Concurrency in place of the worker's own loop; "": nobody.

    Such an engine has `measure_point`. What `python` or `command` of its entry names is that
    harness's, and comes as the option `client`; the engine itself runs in this Python.
    """

    @classmethod
    def parallelism(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - for those that override it
    ) -> Mapping[str, Any] | None:
        """Return what says how many GPUs one process uses; asked before anything is built.

        The product of the values is their number; the names are what a suite writes, such as
        "tensor_parallel_size". {}: always one. None: nobody knows before it runs.
        """
        return None

    @classmethod
    def works_on(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - for those that override it
    ) -> tuple[str, str] | None:
        """Return an option and the device that it names; asked before anything is built.

        The device is "cpu", "cuda" or "cuda:N", as the process counts the GPUs that it sees. None:
        nobody knows.
        """
        return None

    @classmethod
    def clients(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - for those that override it
    ) -> int:
        """Return in how many processes a client is to run; asked before anything is built.

        Each is built with the same options, and gets its share of the samples.
        """
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

    def measure_point(
        self,
        concurrency: int,
        settings: LoadGenSettings,
        folder: Path,
        alive: Callable[[], None],
        *,
        scored: bool,
    ) -> None:
        """Have the engine's harness keep so many requests under way; only one with `harness` does.

        Args:
            concurrency: Requests under way.
            settings: Length, seeds and whether tokens are counted.
            folder: Where its result is to be; it makes it.
            alive: To be called whenever it is seen to work.
            scored: It is the point of its region at which a harness that scores does so.
        """
        raise NotImplementedError

    def client_lateness(self) -> Mapping[str, float]:
        """Return how late an engine that is only a client was since it was last asked, seconds.

        Percentiles by name: "issue_p99" from `submit` to the start of a sample's request,
        "loop_p99" from what came in to its being seen, and p50 and p90 likewise. {}: it is no
        client, or nobody knows.
        """
        return {}

    def null_client(self, tokens: int) -> AbstractContextManager[Engine] | None:
        """Return this client on a server that computes nothing, for what it reaches at most.

        It answers the samples that are loaded here, as long as it is open and none of this
        engine's own are under way. None: this engine is no client, or cannot tell.

        Args:
            tokens: Of every answer.
        """
        del tokens
        return None

    def event_loop(self) -> AbstractEventLoop | None:
        """Return the event loop on which it works, once it has loaded; None: it has none.

        One of several client processes then reads there what it is to ask and writes there what
        came, so that no other thread takes it turns; `submit` is called on the loop's thread.
        """
        return None

    def accepted_drafts(self) -> int | None:
        """Return how many drafted tokens were accepted since it was last asked.

        Of speculative decoding: tokens of answers that took no step of the model of their own.
        None: nothing is drafted, or nobody knows.
        """
        return None

    def answer_counts(self) -> Mapping[str, int]:
        """Return what the answers were since it was last asked, counted; {}: nobody knows.

        "answers" of a language model; "empty" of these without text or calls, "cut_reasoning" of
        the empty ones, which came to their most tokens while the model reasoned; "refused";
        "bad_calls" whose calls of tools are no JSON, where answers are kept: in accuracy runs, and
        in timed ones whose tokens are counted here; "prompt_tokens" as the server counts them in
        prompts whose length is known, and "expected_tokens", that length; "cached_tokens" that the
        server had in its cache of prefixes, of so many "cacheable_tokens"; of so many
        "unsized_answers", whose first message has an unknown number of tokens, the
        "unsized_messages" and "unsized_tokens" that were sent; and by name "build …",
        what the server calls the set-up that answered.
        """
        return {}

    def stage_seconds(self) -> Mapping[str, float]:
        """Return how long stages of the work took since it was last asked, seconds by name.

        A name, as "prefill" or "unet", is a small letter and up to 31 small letters, digits and
        "_"; 16 stages at most. No instant counts twice in a process, so that the sum is at most the
        time that passed; a batch counts once. Of a timed run each becomes the metric `stage_NAME`,
        seconds per sample. {}: the engine does not tell.
        """
        return {}

    def metrics_pages(self) -> Sequence[str] | None:
        """Return addresses of the Prometheus pages of the server that it asks, once it has loaded.

        They are read about once a second while it is measured, without a key. (): the server has
        none. None: there is no server, or nobody looked.
        """
        return None

    def counted_again(self) -> Mapping[int, tuple[int, int]] | None:
        """Return the tokens of answers by a count of its own, made now, since it was last asked.

        By id of the sample: in all, and those after the first piece of the answer. It may take its
        time: nothing is timed meanwhile. None: what `sink.done` was told is all there is.
        """
        return None

    def describe(self) -> Mapping[str, str]:
        """Return versions and settings that belong to the fingerprint, e.g. library and weights."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a scorer found.

    Attributes:
        per_sample: For each metric, one score per sample, in the order given, 0–100 scale unless
            the metric says otherwise; None where the metric does not apply to the sample. Their
            mean, of a count their sum, is the aggregate, up to the rounding of what is printed.
        aggregate: For each metric, the figure MLPerf's reference script prints; one without scores
            per sample is reported and held against a gate, not against the baseline.
        lower: Metrics that are better when lower, e.g. FID; the others are better when higher.
        whole: Metrics that only a whole data set has, e.g. mAP: the score of a sample is then its
            pseudo-value, aggregate + samples x the sample's influence on it.
        leverage: For such metrics, how much of chance the pseudo-values show; without it all.
        chance: What guessing would score, by metric, 0–100 scale.
    """

    per_sample: Mapping[str, Sequence[float | None]]
    aggregate: Mapping[str, float]
    lower: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    leverage: Mapping[str, Leverage] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)


class Scorer(Protocol):
    """Scores outputs as MLPerf's reference script does.

    Built as `factory(model=..., **options)` in a process of its own; `model` is the workload's
    model as the engine gets it (a language model's tokenizer lies there), or None. What is wrong
    is raised by its kind, as a data set does.

    A class that scores more than outputs says so by `artefacts`, names of what engines attach to
    every sample, see `Sink.attach`. `score` is then called with a third sequence: of each sample a
    table of all that was attached to it, bytes by name.
    """

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs against references of the same samples."""
        ...


Prompts = Sequence[Any]
"""Token ids, each a sequence, for a language model; captions for a pipeline of diffusers."""

Progress = Callable[[int, int, str], None]
"""Takes what is done, of how many, and of what: (3, 64, "samples")."""


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
        self, source: Path, target: Path, prompts: Prompts, progress: Progress
    ) -> Mapping[str, str]:
        """Write a checkpoint that engines can load: safetensors and JSON, no pickles.

        A model has config.json; a pipeline has model_index.json, and is written with all its parts.

        Args:
            source: Folder of the model; it must not be changed.
            target: An empty folder. Files of `source` that are neither weights nor written here,
                such as the tokenizer's, are copied afterwards.
            prompts: Token ids, or a pipeline's captions, to look at; empty unless `calibrates`.
            progress: Takes what is done; output to stdout and stderr counts as progress too.

        Returns:
            What belongs to the fingerprint beside versions and options: how weights were
            quantised, and how many.
        """
        raise NotImplementedError


def own_length(dataset: Dataset, index: int) -> int | None:
    """Return how long the data set says that the answer to a sample is to be.

    Raises:
        RunError: It is no whole number from 1 on, and not None.
    """
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
    """Whether a data set's samples are clips of sound."""
    sample = dataset.input(0) if len(dataset) else None
    return isinstance(sample, Mapping) and "audio" in sample
