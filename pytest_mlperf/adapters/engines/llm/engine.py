"""Run engines that load a language model into this process, such as vLLM and TensorRT-LLM."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import Any, ClassVar, Self

from pytest_mlperf import Dataset, RunError, Sink, SuiteError
from pytest_mlperf.adapters.engines import (
    StackedEngine,
    engine_error,
    is_count,
    one_of,
    refuse_conflicts,
)
from pytest_mlperf.adapters.engines.llm.generation import (
    Answers,
    Generation,
    TextOptions,
    TokenPrompts,
    refuse_times,
)
from pytest_mlperf.adapters.engines.llm.model_folder import Config, find_model, tokenizer_for
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats
from pytest_mlperf.adapters.engines.llm.speech import SpeechClips, transcript_encoder
from pytest_mlperf.adapters.engines.llm.streaming import StreamedRequest, percentile
from pytest_mlperf.adapters.engines.llm.tools import ToolChats
from pytest_mlperf.extension import Rule, is_speech, require_options

LOAD_FORMATS = ("auto", "dummy")
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")


@dataclass(frozen=True, kw_only=True)
class LibraryOptions(TextOptions):
    """Options of engines that load a language model library; None keeps its default.

    Attributes:
        tensor_parallel_size: Number of GPUs that share each layer.
        pipeline_parallel_size: Number of such groups of GPUs, among which the layers are divided.
        load_format: "auto", or "dummy" for random weights, to measure speed without weight files.
        stream: Whether tokens are streamed. None streams in all scenarios except Offline, because
            LoadGen waits for first tokens in these. False requests whole answers (Offline only),
            which costs this process less time. True measures token times in Offline too.
    """

    engine: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]]
    counts: ClassVar[tuple[str, ...]]
    """Options that are whole numbers, at least 1, or None."""
    share: ClassVar[str]
    """Option that is above 0 and at most 1, or None."""
    table: ClassVar[str]
    """Name of the option with further arguments, which have the library's names."""
    reserved: ClassVar[Mapping[str, str]]
    """Arguments that `table` must not have, each with the option that sets it."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    load_format: str = "auto"
    stream: bool | None = None

    @property
    def dummy(self) -> bool:
        return self.load_format == "dummy"

    @property
    def whole(self) -> tuple[str, str] | None:
        """(Option name, value) that requests whole answers; None if tokens may be streamed."""
        return ("stream", "false") if self.stream is False else None

    def streams(self, sink: Sink) -> bool:
        """Return whether tokens are streamed in this run, instead of returned as whole answers."""
        return sink.needs_first_tokens if self.stream is None else self.stream and sink.times_tokens

    def check(self, precision: str) -> None:
        """Raise SuiteError for options that the library would reject only after a long load."""
        require_options(f"engine {self.engine}", self._rules(precision))
        refuse_conflicts(self.engine, self._conflicts(precision))

    def _conflicts(self, precision: str) -> Iterator[Sequence[Any]]:  # noqa: ARG002 - of engines
        table = self.table
        for name in getattr(self, table):
            text = f"{table}.{name} is set by {self.reserved.get(name)}; leave it out of {table}"
            yield name in self.reserved, text, table

    def _rules(self, precision: str) -> Iterator[Rule]:
        yield one_of("precision", precision, self.precisions)
        yield one_of("load_format", self.load_format, LOAD_FORMATS)
        for name in (*PARALLEL, *self.counts):
            value = getattr(self, name)
            yield name, value, value is None or is_count(value), "a whole number, at least 1"
        share = getattr(self, self.share)
        yield self.share, share, share is None or 0 < share <= 1, "above 0 and at most 1"

    def refused(self, problem: str, *options: str) -> SuiteError:
        return SuiteError(f"engine {self.engine}: {problem}", option=options)


class LibraryEngine(StackedEngine):
    """Base of engines that call a language model library; `_open` must set `_task` and `_put`."""

    library: ClassVar[str]
    options: ClassVar[type[LibraryOptions]]
    divides: ClassVar[Mapping[str, bool]]
    """Parallelism arguments in `table`; True for those that replicate the whole model."""
    hears: ClassVar[bool] = False
    """Whether the engine accepts clips of sound."""

    _task: GenerateTask
    _put: Callable[[Sequence[int], Sequence[int], Sink], None]

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        name = self.options.engine
        self._options = self.options(**options)
        self._options.check(precision)
        self._generation = self._options.generation(name)
        self._precision = precision
        self._folder = find_model(name, model)
        self._dataset = dataset
        self._facts: dict[str, str] = {"engine": name}

    @classmethod
    def parallelism(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        table = cls.options.table
        further = options.get(table)
        arguments = further if isinstance(further, Mapping) else {}
        sizes = {option: options.get(option, 1) for option in PARALLEL}
        return sizes | {f"{table}.{n}": arguments[n] for n in cls.divides if n in arguments}

    def __enter__(self) -> Self:
        if is_speech(self._dataset) and not self.hears:
            raise self._options.refused(
                "this engine does not support audio clips; use engine vllm or torch-whisper"
            )
        return super().__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        self._log_gaps()
        super().__exit__(*exc_info)

    def load_samples(self, indices: Sequence[int]) -> None:
        self._task.prompts.load(indices)
        self._task.answers.expect(len(self._task.prompts))

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples; log how late tokens arrived after the library's time stamps."""
        self._task.prompts.unload(indices)
        self._log_gaps()

    def answer_counts(self) -> Mapping[str, int]:
        return self._task.answers.take_counts()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        refuse_times(self._generation, self.options.engine, sink)
        if sink.needs_first_tokens and self._options.whole is not None:
            option, value = self._options.whole
            raise self._options.refused(
                f"{option} = {value} returns whole answers, so first tokens cannot be timed; "
                "use it only with scenario Offline",
                option,
            )
        self._put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        return {**self._facts, **self._replica_fact(), **self._generation.describe()}

    def _replica_fact(self) -> Mapping[str, str]:
        sizes = dict(self.parallelism(dataclasses.asdict(self._options)))
        for name, copies in self.divides.items():
            if copies:
                sizes.pop(f"{self.options.table}.{name}", None)
        return {"work.replica_gpus": str(prod(sizes.values()))}

    def _load_tokenizer(self) -> Any:
        tokenizer, fact = tokenizer_for(self.options.engine, self._folder, self._dataset)
        self._facts |= fact
        return tokenizer

    def _make_task(
        self,
        tokenizer: Any,
        config: Config,
        max_tokens: int | None,
        chats: PictureChats | ToolChats | None = None,
        clips: SpeechClips | None = None,
    ) -> GenerateTask:
        limits = (config.vocabulary, config.context, max_tokens)
        generation, dataset = self._generation, self._dataset
        # Answers whose length the data set states are meant to be cut.
        watch_ends = not generation.check_lengths(dataset) and not self._options.dummy
        output = transcript_encoder(tokenizer) if clips is not None else None
        if isinstance(chats, ToolChats):
            output = chats.output
        return GenerateTask(
            library=self.library,
            prompts=generation.prompts(dataset, tokenizer, *limits, chats=chats, clips=clips),
            generation=generation,
            answers=Answers(generation, check_ends=watch_ends, output=output),
            gaps=StampGaps(self.options.engine, self.library),
        )

    def _log_gaps(self) -> None:
        if line := self._task.gaps.take():
            print(line, file=sys.stderr, flush=True)


@dataclass(kw_only=True, slots=True)
class GenerateTask:
    """Prepare prompts for a library; check its answers, and report them."""

    library: str
    prompts: TokenPrompts
    generation: Generation
    answers: Answers
    gaps: StampGaps

    def report(
        self, request: StreamedRequest, row: Sequence[int], prompt_tokens: int | None = None
    ) -> None:
        """Report `row` (token ids) as answer; `prompt_tokens`: None counts the loaded prompt's."""
        outputs, counts = self.answers.check_answers([request.index], [row], request.sink)
        (reason,) = self.answers.reasons([row])
        tokens = len(self.prompts[request.index]) if prompt_tokens is None else prompt_tokens
        request.done(outputs[0] if outputs else None, counts[0], reason, tokens)

    def generation_of(self, index: int) -> Generation:
        return self.generation.of(self.prompts.lengths.get(index))

    def check(self, index: int, row: Sequence[int], finish_reason: Any, cut: str = "") -> None:
        """Raise RunError if answer `row` was cut early (advice: `cut`) or lacks an end token."""
        ends, limit = self.generation.ends, self.generation_of(index).max_new_tokens
        if finish_reason == "stop" and (not row or row[-1] not in ends):
            fault = (
                f"ended with token {(row[-1] if row else 'none')}, which is not an end token of "
                f"the model ({', '.join(map(str, ends)) or 'none'}): its token count would be wrong"
            )
        elif finish_reason == "length" and len(row) != limit:
            fault = f"was cut at {len(row)} tokens, before max_new_tokens = {limit}{cut}"
        elif finish_reason not in ("stop", "length"):
            fault = (
                f"was stopped by {self.library} after {len(row)} tokens: finish_reason is "
                f"{finish_reason!r}"
            )
        else:
            return
        raise engine_error(f"the answer to sample {index} of the data set {fault}")


STAMP_ROUNDING_SECONDS = 1e-3
"""Maximum lead of our stamp over the library's, from rounding."""

MAX_GAP_SECONDS = 20e-3
"""Median delay above which this process adds too much to times to first token."""


class StampGaps:
    """Measure the delay from a library's time stamp of a token to its arrival in this process."""

    def __init__(self, engine: str, library: str) -> None:
        self._engine = engine
        self._library = library
        self._gaps_s: dict[str, list[float]] = {}

    def add(self, index: int, token: str, ours_s: float, theirs_s: float) -> None:
        """Add a "first" or "last" token's delay: its arrival less the library's time stamp [s]."""
        if ours_s < theirs_s - STAMP_ROUNDING_SECONDS:
            raise impossible(
                index,
                f"its {token} token arrived in this process {(theirs_s - ours_s) * 1000.0:.1f} ms "
                f"before {self._library}'s own time stamp: one of the two clocks is wrong",
            )
        self._gaps_s.setdefault(token, []).append(ours_s - theirs_s)

    def take(self) -> str:
        """Return a log line with p50 and p99 token delay since the last call; "" if no tokens."""
        gaps_s, self._gaps_s = self._gaps_s, {}
        if not gaps_s:
            return ""
        parts = [
            f"{token} token {percentile(delays_s, 0.5) * 1e3:.1f} and "
            f"{percentile(delays_s, 0.99) * 1e3:.1f} ms"
            for token, delays_s in gaps_s.items()
        ]
        line = (
            f"engine {self._engine}: tokens arrived in this process later than {self._library}'s "
            f"own time stamps, by (p50 and p99): {', '.join(parts)}, over "
            f"{len(gaps_s['first'])} requests"
        )
        if percentile(gaps_s["first"], 0.5) <= MAX_GAP_SECONDS:
            return line
        return (
            f"{line}; WARNING: the median is above {MAX_GAP_SECONDS * 1000.0:.0f} ms, so part "
            "of the time to first token is spent in this process, which may be short of CPU"
        )


def impossible(index: int, contradiction: str) -> RunError:
    """Return the error of a sample whose time stamps contradict each other."""
    return engine_error(
        f"sample {index} of the data set: {contradiction}; so no token time of this run can be "
        "trusted",
    )


def check_names(
    options: LibraryOptions, arguments: Iterable[str], valid: Iterable[str], library: str, kind: str
) -> None:
    """Raise for arguments that this version of a library does not accept; suggest similar names."""
    names = list(valid)
    for name in arguments:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise options.refused(f"{library} has no {kind} {name}{meant}", options.table)
