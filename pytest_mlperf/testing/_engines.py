"""Check that an engine fulfils the contract of `core.extension.Engine`."""

from __future__ import annotations

import re
import reprlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Engine
from pytest_mlperf.core.rulings.ruling import miscounted
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.worker import samples as data_sets
from pytest_mlperf.run.worker.samples import stages_of
from pytest_mlperf.testing._checks import check_factory, demand, name_of
from pytest_mlperf.testing._sink import RecordingSink

EXIT_TIMEOUT_SECONDS = 20.0
SETTLE_SECONDS = 2.0
PAGE = re.compile("https?://.")
"""Beginning of a URL."""

FIRST_ID = 1 << 40
"""Like LoadGen's, ids are large and unrelated to indices."""


def check_engine(
    engine: Callable[..., Engine],
    dataset: Dataset | Sequence[Any],
    *,
    model: str | None = None,
    precision: str = "fp32",
    options: Mapping[str, Any] | None = None,
    tokens: bool = False,
    samples: int = 24,
    same_answers: bool = True,
    artefacts: Collection[str] = (),
    limit_s: float = 60.0,
) -> dict[int, bytes]:
    """Check an engine; return its answer to each sample that was submitted.

    The engine is built, entered and called as in a run under LoadGen: one sample at a time, eight
    at once, and all at once with repetitions, with and without outputs, in blocks that are loaded
    and unloaded. It must complete every id exactly once and in time, from threads that live as long
    as the engine, with bytes as output if outputs are requested and without output otherwise.
    Answers must not depend on batching. After `__exit__` no thread, process or report may be left.

    Args:
        engine: Class; called as `engine(dataset=..., model=..., precision=..., **options)`.
        tokens: Whether it is a language model: tokens are counted, and timed if requested.
        samples: Maximum number of samples to submit, from the first on.
        same_answers: Whether answers and artefacts of a sample are always the same bytes.
        artefacts: Names of the artefacts that each sample needs when outputs are requested.
        limit_s: Maximum time for one list of samples [s].

    Raises:
        AssertionError: The engine breaks the contract; the message has the fix.
        MlperfError: The engine refuses these options, this model, or this machine.
    """
    data, settings = data_sets.as_dataset(dataset), dict(options or {})
    title = f"engine {name_of(engine)}"
    registered = check_factory("engines", engine, settings)
    parts = {"model": model, "precision": precision, **settings}
    initial = _running()
    if registered:
        engine(dataset=None, **parts)
        started = _started_since(initial, 0)
        demand(
            not started,
            f"{title}: __init__ started {started}",
            "pytest builds it only to check options; start threads and processes in __enter__",
        )
    built = engine(dataset=data, **parts)
    trial = _EngineTrial(built, title, tokens, same_answers, frozenset(artefacts), limit_s)
    entered = built.__enter__()
    try:
        demand(entered is not None, f"{title}: __enter__ returned None", "let it return self")
        trial.everything(range(min(samples, len(data))))
    except BaseException:
        built.__exit__(*sys.exc_info())
        raise
    trial.leave()
    leftovers = _started_since(initial, SETTLE_SECONDS)
    demand(
        not leftovers,
        f"{title}: {leftovers} still run after __exit__",
        "end and join in __exit__ what __enter__ starts, as WorkQueue.close() does",
    )
    return trial.answers


def _running() -> set[threading.Thread | int]:
    running: set[threading.Thread | int] = set(threading.enumerate())
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # that thread has just ended
            running.update(map(int, path.read_text().split()))
    return running


def _started_since(initial: set[threading.Thread | int], patience_s: float) -> str:
    """Wait for threads and processes that are not in `initial` to end; return those that do not."""
    end = time.monotonic() + patience_s
    while True:
        words = []
        for member in _running() - initial:
            if isinstance(member, int):
                words.append(f"process {member}")
            elif member.is_alive() and not type(member).__module__.startswith("tqdm"):
                words.append(f"thread {member.name}")
        if not words or time.monotonic() >= end:
            return ", ".join(sorted(words))
        time.sleep(0.01)


@dataclass
class _EngineTrial:
    """Call an engine in every way that LoadGen does, and check its reports."""

    engine: Engine
    title: str
    tokens: bool
    same_answers: bool
    attached: frozenset[str]
    limit_s: float
    answers: dict[int, bytes] = field(default_factory=dict)
    artefacts: dict[int, Mapping[str, bytes]] = field(default_factory=dict)
    sinks: list[RecordingSink] = field(default_factory=list)
    next_id: int = FIRST_ID

    def everything(self, indices: range) -> None:
        self._describe()
        self.engine.stage_seconds()
        begun_s = time.monotonic()
        half = (len(indices) + 1) // 2
        for block in (indices[:half], indices[half:]):
            if block:
                self._block(block)
        self.engine.load_samples(indices)
        self._ask(indices, size=1, wants_output=False, way="one by one, without outputs")
        self._ask(
            [*reversed(indices), *indices], size=None, wants_output=False, way="all at once again"
        )
        self.engine.unload_samples(indices)
        try:
            stages_of(self.engine, time.monotonic() - begun_s)
        except RunError as error:
            raise AssertionError(f"{self.title}: {error}") from None
        lateness, drafts = self.engine.client_lateness(), self.engine.accepted_drafts()
        pages = self.engine.metrics_pages()
        are_pages = pages is None or (type(pages) is not str and all(map(PAGE.match, pages)))
        is_count = drafts is None or (type(drafts) is int and drafts >= 0)
        address = 'addresses as "http://127.0.0.1:8000/metrics", () or None'
        for call, value, valid, form in (
            ("client_lateness", lateness, all(map(isfinite, lateness.values())), "seconds or {}"),
            ("accepted_drafts", drafts, is_count, "a number of tokens, or None"),
            ("metrics_pages", pages, are_pages, address),
        ):
            demand(valid, f"{self.title}: {call}() returned {value!r}", f"return {form}")

    def leave(self) -> None:
        """Exit the engine; require that it ends in time, stops reporting, and hides no error."""
        begun_s = time.monotonic()
        hides = self.engine.__exit__(None, None, None)  # type: ignore[func-returns-value]
        took_s = time.monotonic() - begun_s
        for sink in self.sinks:
            sink.close()
        demand(
            not hides,
            f"{self.title}: __exit__ returned {hides!r}, which hides errors",
            "return None",
        )
        demand(
            took_s <= EXIT_TIMEOUT_SECONDS,
            f"{self.title}: __exit__ took {took_s:.0f} s",
            f"it must end within {EXIT_TIMEOUT_SECONDS:g} s, or the worker is killed",
        )
        time.sleep(0.05)  # reports after the exit come soon
        for sink in self.sinks:
            try:
                sink.require_no_fault()
            except AssertionError as error:
                raise AssertionError(
                    f"{self.title}: {error}: complete each id exactly once, and join "
                    "threads in __exit__"
                ) from None

    def _describe(self) -> None:
        first, second = dict(self.engine.describe()), dict(self.engine.describe())
        texts = [*first, *first.values()]
        demand(
            all(isinstance(text, str) for text in texts),
            f"{self.title}: describe() returned {first!r}",
            "return a dict of strings: versions and settings",
        )
        demand(
            first == second,
            f"{self.title}: describe() returned {first!r}, then {second!r}",
            "return what stays the same while the engine runs; runs are told apart by it",
        )

    def _block(self, block: Sequence[int]) -> None:
        repeated = [*reversed(block), *block[::2]]
        self.engine.load_samples(block)
        self._ask(block, size=1, wants_output=True, way="one by one")
        self._ask(block, size=8, wants_output=True, way="eight at once")
        self._ask(repeated, size=None, wants_output=True, way="all at once")
        self.engine.unload_samples(block)

    def _ask(
        self, indices: Sequence[int], *, size: int | None, wants_output: bool, way: str
    ) -> None:
        ids = range(self.next_id, self.next_id + len(indices))
        self.next_id += len(indices)
        where = f"{self.title}, samples {way}"
        sink = RecordingSink(
            ids,
            wants_output=wants_output,
            times_tokens=self.tokens and not wants_output,
            counts_tokens=True if self.tokens else None,
        )
        sink.limit_s = self.limit_s
        self.sinks.append(sink)
        size = size or len(ids)
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            self.engine.submit(ids[part], list(indices[part]), sink)
        try:
            sink.wait_for_end()
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None
        if sink.errors:
            raise sink.errors[0]
        if dead := sink.dead_threads:
            raise AssertionError(
                f"{where}: {', '.join(dead)} completed samples and "
                "ended: LoadGen can crash then; keep threads until __exit__, as WorkQueue does"
            )
        index_of = dict(zip(ids, indices, strict=True))
        self._compare(index_of, sink, where)
        if self.tokens:
            self._count(sink, where, first=sink.times_tokens and size == 1)
            self._check_token_counts(index_of, sink, where)

    def _compare(self, index_of: Mapping[int, int], sink: RecordingSink, where: str) -> None:
        for sample, output in sink.outputs.items():
            index, artefacts = index_of[sample], sink.artefacts.get(sample, {})
            missing = ", ".join(sorted(self.attached - artefacts.keys()))
            demand(
                not missing,
                f"{where}: sample {index} has no artefact {missing}",
                "give it to sink.attach() before done() where wants_output is true",
            )
            demand(
                self.artefacts.setdefault(index, artefacts) == artefacts or not self.same_answers,
                f"{where}: the artefacts of sample {index} differ from those of an earlier answer",
                "let them depend on the sample alone, or check with same_answers=False",
            )
            earlier = self.answers.setdefault(index, output)
            demand(
                earlier == output or not self.same_answers,
                f"{where}: the answer to sample {index} is "
                f"{reprlib.repr(output)}, and was {reprlib.repr(earlier)} before",
                "answers must not depend on which samples come together; if they do by nature, "
                "check with same_answers=False",
            )

    def _count(self, sink: RecordingSink, where: str, *, first: bool) -> None:
        for sample in sink.ids:
            count, reports = sink.n_tokens[sample], sink.reports(sample)
            output = sink.outputs.get(sample)
            demand(
                output is None or len(output) == 8 * count,
                f"{where}: an answer has {len(output or b'')} bytes and {count} tokens",
                "return the generated token ids as little-endian int64, and their number",
            )
            demand(
                not first or (count >= 2 and reports[0] == "first"),
                f"{where}: an answer of {count} tokens was reported as {', '.join(reports[:3])}",
                "where times_tokens is true, first_tokens() comes before done(), and an answer has "
                "2 tokens at least",
            )
            demand(
                reports.count("next") < count,
                f"{where}: an answer of {count} tokens has "
                f"{reports.count('next')} tokens after its first",
                "call next_tokens() once for each further token, or never",
            )

    def _check_token_counts(
        self, index_of: Mapping[int, int], sink: RecordingSink, where: str
    ) -> None:
        """Check that runs without outputs report token counts equal to the answers' lengths."""
        lengths = {index: len(answer) // 8 for index, answer in self.answers.items()}
        counts: dict[int, list[int]] = {}
        for sample, index in index_of.items():
            counts.setdefault(index, []).append(sink.n_tokens[sample])
        notes = miscounted(counts, lengths, drawn=True) or ()
        fault = next(map(sentence, notes), None)
        if self.same_answers:
            other = (i for i, each in counts.items() if {*each} != {lengths[i]})
            words = (
                f"{' and '.join(map(str, counts[i]))} at sample {i}, whose answer has {lengths[i]}"
                for i in other
            )
            fault = next(words, None)
        demand(
            not fault,
            f"{where}: n_tokens is not the length of the answers: {fault}",
            "count the tokens of the answer, its end token included, whatever the run asks for",
        )
