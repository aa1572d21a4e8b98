"""Define the messages of parent and worker: a spec file, then JSON lines both ways.

The parent writes one `Command` per line to the worker's stdin. If stdin closes, the parent is gone:
the worker ends its process group. The worker writes one `Event` per line to the descriptor named by
`--events`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.job import Expected, Factory, LoadGenSettings, Seeds

PACKAGE = Path(__file__).parents[2]


def import_path(suite: Path | None = None) -> list[str]:
    """Return the absolute folders of `sys.path`, and those of a suite's own code."""
    folders = [*sys.path, *([] if suite is None else ["", str(suite.parent)])]
    return list(dict.fromkeys(str(Path(folder).absolute()) for folder in folders))


def import_as_parent(path: Sequence[str]) -> None:
    """Add the parent process's import folders to `sys.path`, in the parent's order.

    Those before the first folder of `sys.path`, e.g. pytest's `pythonpath`, go first, others last.
    """
    first = list(itertools.takewhile(lambda folder: folder not in sys.path, path))
    sys.path[:] = dict.fromkeys([*first, *sys.path, *path])


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """Define the task of a replica: one of several processes that each load the engine.

    Attributes:
        name: Name in messages: "replica 3 (GPU 5)".
        gpus: UUIDs of its GPUs; empty for none.
        environment: Variables that make only these GPUs visible.
        cpus: Processors that the replica may use; empty for the worker's processors.
        client: Whether the replica is a client of a server that all replicas share.
    """

    name: str
    gpus: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: Sequence[int] = ()
    client: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Define a worker's task: load the engine, make a performance run, then an accuracy pass.

    Attributes:
        folder: Existing folder of this run, absolute.
        precision: Precision in the suite, e.g. "fp32".
        handicap: Share of speed to remove, 0 ≤ handicap < 1; work takes 1/(1-handicap) as long.
        import_path: Import folders of the parent process, which the worker uses too.
        import_first, import_not: In another Python, folders to import from first, or never.
        environment: In another Python, variables to set; None removes one.
        replicas: Processes that each load the engine; empty if the worker loads it.
        replica_patience_s: Time limit for a replica that reports nothing [s].
        requests: Whether to record each request of Concurrency and OpenLoop runs.
        answer_forms: Formats of the engine's answers and of LoadGen's log; empty if equal.
    """

    folder: str
    engine: Factory
    dataset: Factory
    model: str | None
    precision: str
    settings: LoadGenSettings
    expected: Expected = field(default_factory=Expected)
    performance: bool = True
    handicap: float = 0.0
    warmup_s: float = 0.5
    import_path: Sequence[str] = ()
    import_first: Sequence[str] = ()
    import_not: Sequence[str] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    replicas: Sequence[ReplicaSpec] = ()
    replica_patience_s: float = 900.0
    requests: bool = False
    answer_forms: Sequence[str] = ()

    def to_json(self) -> str:
        """Return the spec as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """Parse the result of `to_json`."""
        raw = json.loads(text)
        settings = dict(raw["settings"])
        settings["scenario"] = Scenario(settings["scenario"])
        settings["seeds"] = Seeds(**settings["seeds"])
        return cls(
            **{
                **raw,
                "engine": Factory(**raw["engine"]),
                "dataset": Factory(**raw["dataset"]),
                "expected": Expected(**raw["expected"]),
                "settings": LoadGenSettings(**settings),
                "replicas": [ReplicaSpec(**one) for one in raw["replicas"]],
            }
        )


Event = dict[str, Any]
"""Message of the worker; `event` names it:

python    prefix, executable, version, versions (of every worker's imports), system: first, and
          only from a worker in another Python
started   pid
loading
loaded    engine: dict[str, str] (describe()), dataset: {digest, samples, sizes, fixed_lengths (of
          answers), inputs (digests), input_s (of a sample)}, files (imported), load_s, pages (of
          its server's metrics)
warmed    warmup_s, takes_s (expected length of the run; None if its rate is probed)
probed    target_qps
running   phase ("performance" | "accuracy"), expected (samples), settings actually used (dict)
progress  phase, done (samples), outstanding (samples), fault (the first, or None), elapsed_s;
          twice a second, even without a change
finished  phase, folder (LoadGen's logs), result (dict, see `RunFinished`)
ready     the worker waits for a command
leaving   after stop, before the engine's __exit__
error     layer, kind (class of the exception), message, designed (an error class of ours, whose
          message suffices), traceback; the worker then ends
"""

Command = dict[str, Any]
"""Message of the parent; `command` names it:

accuracy  block (int), indices (data set indices): one accuracy run over these samples
stop      end in order
"""


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """Hold the worker's own measurements of one LoadGen run.

    Attributes:
        completed: Samples completed by the engine, each counted once.
        duration_s: From the first issue to the last completion, monotonic clock.
        within_se: Relative standard error of the throughput by batch means; 0 if unknown.
        token_metrics: Metrics from our own token counts and time stamps, SI units.
        notes: Limitations of these time stamps, in words.
        corrected: Whether a time per output token was divided by fewer than (tokens - 1), unlike
            LoadGen's, because tokens arrived together or were hidden.
        hidden_share: Share of hidden tokens (reasoning); None if the engine does not report it.
        faults: Completions not passed to LoadGen: unknown or repeated ids, missing outputs.
        client: Lateness of an engine that is a client, see `Engine.client_lateness`.
        contention: Processor use during the run, see `Contention`; None if not read.
        finishes: Counts of finish reasons; empty if not reported.
        replicas: Results of each replica, see `ReplicaRun`.
        peak_bytes: Peak memory of worker, replicas and servers, see
            `hardware.contention.ContentionMonitor.peak_bytes`; None if unknown.
        clock_moved_s: Change of the wall clock; above 0 if set forward.
        slow_start: Effect of a slow start on TTFT and TPOT, see `clocks.slow_start`.
        accepted_drafts, answer_counts, stages: See `Engine`; stages in seconds.
        answer_forms: Formats of the engine's answers and LoadGen's log; empty if equal.
        salt: Name that made the run's prompts unique, see `Sink`.
    """

    issued: int
    completed: int
    duration_s: float
    within_se: float
    token_metrics: Mapping[str, float]
    notes: Mapping[str, str]
    faults: Sequence[str]
    completing_threads: int
    client: Mapping[str, float] = field(default_factory=dict)
    accepted_drafts: int | None = None
    contention: Mapping[str, Any] | None = None
    finishes: Mapping[str, int] = field(default_factory=dict)
    replicas: Sequence[Mapping[str, Any]] = ()
    peak_bytes: int | None = None
    clock_moved_s: float = 0.0
    slow_start: Mapping[str, float] = field(default_factory=dict)
    corrected: bool = False
    hidden_share: float | None = None
    answer_counts: Mapping[str, int] = field(default_factory=dict)
    answer_forms: Sequence[str] = ()
    salt: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)
