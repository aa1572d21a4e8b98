"""Provide a sink for tests that records every report of an engine."""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Counts, Outputs
from pytest_mlperf.stores.artefacts import artefact_fault


class RecordingSink:
    """Record every report of an engine, and violations of the contract.

    It is thread-safe. As in a run, nothing is raised into the engine; `wait` raises instead.

    Attributes:
        calls: ("first", ids), ("next", ids) or ("done", ids) for each call, in order of time.
        first: First token of each id, if the engine reported it.
        after_first, hidden: Token counts passed to `streamed`, by id.
        reasons, prompt_tokens: Finish reasons and prompt lengths passed to `ended`, by id.
        artefacts: Artefacts passed to `attach`, by id.
        errors: Exceptions passed to `failed`.
        faults: Violations of the contract, in words.
    """

    limit_s: float = 60.0
    """Maximum time to wait for all samples [s]."""

    def __init__(
        self,
        expected: int | Collection[int] = 0,
        *,
        wants_output: bool = True,
        times_tokens: bool = False,
        counts_tokens: bool | None = None,
        needs_first_tokens: bool | None = None,
    ) -> None:
        """Create a sink without reports.

        Args:
            expected: Ids that will be submitted, or their number.
            wants_output: Whether to request outputs, as accuracy runs do.
            times_tokens: Whether to request each token as it comes, as performance runs of language
                models do.
            counts_tokens: Whether token counts are required (True) or forbidden (False); None
                allows both.
            needs_first_tokens: Whether to wait for first tokens; default: `times_tokens`, as in
                every scenario but Offline.
        """
        self.wants_output = wants_output
        self.times_tokens = times_tokens
        self.needs_first_tokens = times_tokens if needs_first_tokens is None else needs_first_tokens
        self.calls: list[tuple[str, list[int]]] = []
        self.ids: list[int] = []
        self.first: dict[int, bytes] = {}
        self.outputs: dict[int, bytes] = {}
        self.artefacts: dict[int, Mapping[str, bytes]] = {}
        self.n_tokens: dict[int, int] = {}
        self.after_first: dict[int, int | None] = {}
        self.hidden: dict[int, int | None] = {}
        self.reasons: dict[int, str] = {}
        self.prompt_tokens: dict[int, int | None] = {}
        self.threads: set[int] = set()
        self.errors: list[BaseException] = []
        self.faults: list[str] = []
        self._counts_tokens = counts_tokens
        self._issued = None if isinstance(expected, int) else set(expected)
        self._expected = expected if isinstance(expected, int) else len(expected)
        self._callers: set[threading.Thread] = set()
        self._completed: set[int] = set()
        self._begun: set[int] = set()
        self._closed = False
        self._over = threading.Event()
        self._lock = threading.RLock()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Record the first token of each of these samples."""
        with self._lock:
            self._report("first", ids, "first_tokens")
            self._keep_beside(self.first, ids, tokens, "first_tokens", "tokens")
            for sample in ids:
                if sample in self._begun:
                    self.faults.append(f"first_tokens() was given id {sample} a second time")
            self._begun.update(ids)

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Record one more token of each of these samples."""
        with self._lock:
            self._report("next", ids, "next_tokens")
            for sample in ids:
                if sample not in self._begun:
                    self.faults.append(f"next_tokens() was given id {sample} before first_tokens()")

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """Record how many tokens followed each answer's first message, and how many were hidden."""
        with self._lock:
            self.after_first.update(zip(ids, after_first, strict=True))
            self._keep_beside(self.hidden, ids, hidden, "streamed", "hidden")

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Record the finish reasons and prompt lengths of these samples."""
        with self._lock:
            for sample, reason in zip(ids, reasons, strict=True):
                self.reasons[sample] = reason
                if sample in self._completed:
                    self.faults.append(f"ended() was given id {sample} after done()")
            self._keep_beside(self.prompt_tokens, ids, prompt_tokens, "ended", "prompt_tokens")

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Record the artefacts of these samples."""
        with self._lock:
            if problem := artefact_fault(ids, artefacts):
                self.faults.append(problem)
            for sample, artefact_by_name in zip(ids, artefacts, strict=False):
                if sample in self._completed or sample in self.artefacts:
                    self.faults.append(f"attach() was given id {sample} after done(), or twice")
                self.artefacts[sample] = artefact_by_name

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Record that these samples are complete, with their outputs and token counts."""
        with self._lock:
            self._report("done", ids, "done")
            self._keep_outputs(ids, outputs)
            if self._counts_tokens not in {None, n_tokens is not None}:
                rule = "needs n_tokens" if self._counts_tokens else "takes no n_tokens"
                self.faults.append(f"done() {rule} in this run, but was given {n_tokens!r}")
            self._keep_beside(self.n_tokens, ids, n_tokens, "done", "counts")
            self.ids += ids
            self._completed.update(ids)
            if len(self._completed) >= self._expected:
                self._over.set()

    def failed(self, error: object) -> None:
        """Record the error that stopped the engine."""
        with self._lock:
            if self._closed:
                self.faults.append("failed() was called after __exit__")
            if isinstance(error, BaseException):
                self.errors.append(error)
            else:
                fault = f"failed() was given {error!r}; it takes an exception object"
                self.faults.append(fault)
                self.errors.append(RunError("engine", fault))
            self._over.set()

    def wait_for_end(self) -> None:
        """Wait until every sample is completed exactly once, or the engine has failed.

        Raises:
            AssertionError: Samples are not completed in time, or a run would reject a report.
        """
        over = self._over.wait(self.limit_s)
        self.require_no_fault()
        if over:
            return
        with self._lock:
            missing = sorted(self._issued - self._completed) if self._issued else []
            count = self._expected - len(self._completed)
        which = f", first: ids {', '.join(map(str, missing[:5]))}" if missing else ""
        raise AssertionError(
            f"{count} of {self._expected} samples are not completed after {self.limit_s:g} s{which}"
            ": give each id to sink.done() exactly once, or the error to sink.failed()"
        )

    def wait(self) -> None:
        """Wait as `wait_for_end` does, and raise the engine's error if it failed."""
        self.wait_for_end()
        if self.errors:
            raise self.errors[0]

    def require_no_fault(self) -> None:
        """Raise AssertionError for the first report that a run would reject."""
        with self._lock:
            faults = list(self.faults)
        if faults:
            more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
            raise AssertionError(f"{faults[0]}{more}")

    def close(self) -> None:
        """Record every later report as a violation, because the engine has exited."""
        with self._lock:
            self._closed = True

    def reports(self, sample: int) -> list[str]:
        """Return the kinds of report for an id in order: "first", "next", "done"."""
        return [kind for kind, each in self.events if each == sample]

    @property
    def events(self) -> list[tuple[str, int]]:
        """All reports in order, as ("first", "next" or "done", id)."""
        with self._lock:
            return [(kind, sample) for kind, ids in self.calls for sample in ids]

    @property
    def batches(self) -> list[list[int]]:
        """Ids in each call of `done`, in order."""
        with self._lock:
            return [ids for kind, ids in self.calls if kind == "done"]

    @property
    def dead_threads(self) -> list[str]:
        """Names of the threads that called this sink and have ended since."""
        with self._lock:
            return sorted(thread.name for thread in self._callers if not thread.is_alive())

    @property
    def answers(self) -> dict[int, list[int]]:
        """Tokens of each output of a language model (int64, little-endian)."""
        return {
            sample: list(struct.unpack(f"<{len(output) // 8}q", output))
            for sample, output in self.outputs.items()
        }

    @property
    def error(self) -> BaseException | None:
        """First error of the engine; None if it has not failed."""
        return self.errors[0] if self.errors else None

    def _report(self, kind: str, ids: Sequence[int], call: str) -> None:
        self.threads.add(threading.get_ident())
        self._callers.add(threading.current_thread())
        if self._closed:
            self.faults.append(f"{call}() was called after __exit__, with ids {list(ids)[:5]}")
        if kind != "done" and not self.times_tokens:
            self.faults.append(f"{call}() was called although times_tokens is false")
        for sample in ids:
            if self._issued is not None and sample not in self._issued:
                self.faults.append(f"{call}() was given id {sample!r}, which was never submitted")
            elif sample in self._completed:
                self.faults.append(f"{call}() was given id {sample}, which was completed before")
        if kind != "next" and len(set(ids)) < len(ids):
            self.faults.append(f"{call}() was given an id twice in one list: {list(ids)[:8]}")
        self.calls.append((kind, list(ids)))

    def _keep_outputs(self, ids: Sequence[int], outputs: Sequence[object] | None) -> None:
        if (outputs is not None) is not self.wants_output:
            rule = "needs outputs" if self.wants_output else "takes no outputs"
            self.faults.append(f"done() {rule} if wants_output is {self.wants_output}")
        if outputs is None:
            return
        if len(outputs) != len(ids):
            self.faults.append(f"done() was given {len(outputs)} outputs for {len(ids)} ids")
        for sample, output in zip(ids, outputs, strict=False):
            if not isinstance(output, bytes):
                kind = type(output).__name__
                self.faults.append(f"the output of id {sample} is a {kind}; bytes are needed")
            else:
                self.outputs[sample] = output

    def _keep_beside(
        self,
        kept: dict[int, Any],
        ids: Sequence[int],
        values: Sequence[Any] | None,
        call: str,
        noun: str,
    ) -> None:
        if values is not None and len(values) != len(ids):
            self.faults.append(f"{call}() was given {len(values)} {noun} for {len(ids)} ids")
        kept.update(zip(ids, values or (), strict=False))
