"""Run an engine as several replicas, each a process with its own GPUs, under one LoadGen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from math import fsum
from pathlib import Path
from typing import Any, ClassVar, Self

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.run.child.protocol import WorkerSpec
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._dispatch import Dispatcher
from pytest_mlperf.run.worker._replica_group import ReplicaGroup, ReplicaProcess
from pytest_mlperf.run.worker._sink import Fail, GuardedSink


class ReplicatedEngine(Engine):
    """Send samples to the replica with the least outstanding work; report completions to LoadGen.

    Attributes:
        called: Key under which the fingerprint has the number of processes.
        files: Files that the replicas imported, see `imported_files`.
    """

    called: ClassVar[str] = "replicas"

    def __init__(self, spec: WorkerSpec, spec_file: Path, dataset: Dataset, fail: Fail) -> None:
        self._spec, self._dataset, self._fail = spec, dataset, fail
        self._group = ReplicaGroup(spec, spec_file, self._hear, fail)
        self._dispatcher = Dispatcher(
            self._group.processes, self._group.send, spec.settings.scenario
        )
        self._sink: Sink | None = None
        self._stamp_s = 0.0
        self._facts: dict[str, str] = {}
        self.files: list[str] = []
        self._pages: tuple[str, ...] | None = None

    @property
    def replicas(self) -> int:
        return len(self._spec.replicas)

    def __enter__(self) -> Self:
        loaded = self._group.start()
        self._facts = self._agreed([dict(facts) for _, facts, *_ in loaded])
        replica_pages = [pages for _, _, pages, _ in loaded if pages is not None]
        self.files = list(chain.from_iterable(files for *_, files in loaded))
        self._pages = tuple(dict.fromkeys(chain(*replica_pages))) if replica_pages else None
        batch = self._facts.get("work.batch") or self._facts.get("batch_size") or "1"
        self._dispatcher.batch = self._batch_of(max(1, int(batch)) if batch.isdigit() else 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._group.stop()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Load all samples in every replica, as any replica may get any sample."""
        self._dispatcher.costs = self._costs(indices)
        for replica in self._group.processes:
            replica.lists = wire.Lists()
        self._group.tell_all(wire.LOAD, indices, "loading samples")

    def unload_samples(self, indices: Sequence[int]) -> None:
        self._group.tell_all(wire.UNLOAD, indices, "unloading samples")

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if sink is not self._sink:
            self._use(sink)
        self._dispatcher.submit(ids, indices)

    def accepted_drafts(self) -> int | None:
        counts = self._group.ask_all("accepted_drafts", "counting drafts")
        return None if None in counts else sum(counts)

    def answer_counts(self) -> Mapping[str, int]:
        counts = self._group.ask_all("answer_counts", "counting answers")
        return sum(map(Counter, counts), Counter[str]())

    def stage_seconds(self) -> Mapping[str, float]:
        spent = self._group.ask_all("stage_seconds", "timing stages")
        return {n: fsum(one.get(n, 0.0) for one in spent) for n in dict.fromkeys(chain(*spent))}

    def metrics_pages(self) -> Sequence[str] | None:
        return self._pages

    def describe(self) -> Mapping[str, str]:
        """Return the facts that all replicas share, and the number of replicas."""
        return self._facts

    def replica_runs(self) -> list[dict[str, Any]]:
        return self._dispatcher.runs()

    def _batch_of(self, batch: int) -> int:
        return batch

    def _use(self, sink: Sink) -> None:
        """Set the sink; its clock returns the time stamps of the replicas."""
        self._sink = sink
        self._dispatcher.use(sink)
        if isinstance(sink, GuardedSink):
            sink.use_clock(lambda: self._stamp_s)

    def _hear(self, replica: ReplicaProcess, message: wire.Message) -> None:
        sink = self._sink
        if sink is None:
            return
        kind, self._stamp_s, ids, *facts = message
        match kind:
            case wire.DONE:
                sink.done(self._dispatcher.completed(replica, ids), *facts)
            case wire.LOST if isinstance(sink, GuardedSink):
                sink.lost(self._dispatcher.completed(replica, ids))
            case wire.FIRST:
                sink.first_tokens(replica.unpacked(ids))
            case wire.NEXT:
                sink.next_tokens(replica.unpacked(ids))
            case wire.STREAMED:
                sink.streamed(replica.unpacked(ids), *facts)
            case wire.ENDED:
                sink.ended(replica.unpacked(ids), *facts)
            case wire.ATTACHED:
                sink.attach(replica.unpacked(ids), *facts)
        if isinstance(sink, GuardedSink) and sink.faults.count:
            self._fail(RunError("engine", f"{replica.spec.name}: {sink.faults.texts[0]}"))

    def _agreed(self, facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
        replicas = self._spec.replicas
        for replica, other in zip(replicas[1:], facts[1:], strict=True):
            for name in sorted({*facts[0], *other}):
                if facts[0].get(name) != other.get(name):
                    raise RunError(
                        "engine",
                        f"{replicas[0].name} and {replica.name} differ in {name} of describe(): "
                        f"{facts[0].get(name)} and {other.get(name)}; replicas must be equal",
                    )
        gpus = Counter(len(replica.gpus) for replica in replicas)
        (replica_gpus,) = gpus or {0: 0}
        share = {"work.replica_gpus": str(replica_gpus)} if replica_gpus else {}
        return {**share, **facts[0], self.called: str(self.replicas)}

    def _costs(self, indices: Sequence[int]) -> dict[int, float]:
        sizes = getattr(self._dataset, "sizes", None)
        if not callable(sizes) or self._spec.settings.scenario != Scenario.OFFLINE:
            return {}
        cost = {index: sum(sizes([index]).values()) for index in dict.fromkeys(indices)}
        return cost if len(set(cost.values())) > 1 else {}
