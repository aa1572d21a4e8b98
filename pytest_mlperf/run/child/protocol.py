"""What parent and worker say to each other: a spec file, then JSON lines both ways.

Parent to worker, on the worker's stdin: one `Command` per line. End of file means that the parent
is gone; the worker then ends its whole process group.
Worker to parent, on the descriptor named by `--events`: one `Event` per line.
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

from pytest_mlperf.core.job import Expected, Factory, LoadGenSettings, Seeds

PACKAGE = Path(__file__).parents[2]


def import_path(suite: Path | None = None) -> list[str]:
    """Return the folders that this Python imports from, absolute.

    A suite's own code may also lie in the working folder, or in the folder of the suite.
    """
    folders = [*sys.path, *([] if suite is None else ["", str(suite.parent)])]
    return list(dict.fromkeys(str(Path(folder).absolute()) for folder in folders))


def import_as_parent(path: Sequence[str]) -> None:
    """Take over the parent's folders: first those that it searches before all that both have.

    Pytest puts its `pythonpath` there, before whatever is installed.
    """
    first = list(itertools.takewhile(lambda folder: folder not in sys.path, path))
    sys.path[:] = dict.fromkeys([*first, *sys.path, *path])


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """One of several processes that each load the engine.

    Attributes:
        name: What messages call it: "replica 3 (GPU 5)".
        gpus: UUIDs of its GPUs; empty: it has none.
        environment: Variables by which it sees these GPUs and no other.
        cpus: Processors that it may use; empty: as its worker.
        client: It and the others are clients of one server.
    """

    name: str
    gpus: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: Sequence[int] = ()
    client: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker process: one engine load, a performance run, then accuracy blocks on demand.

    Attributes:
        folder: Existing folder of this run, absolute.
        precision: The suite's word, e.g. "fp32".
        handicap: Share of speed taken away, 0 ≤ handicap < 1; work takes 1/(1-handicap) as long.
        import_path: Folders that the parent imports from, with those of `protocol.import_path`.
        import_first: Elsewhere: folders that come before all others.
        import_not: Elsewhere: folders that must not be imported from.
        environment: Elsewhere: variables that the worker sets itself; None removes one.
        replicas: Processes that each load the engine; empty: the worker itself does.
        replica_patience_s: Longest time that one of them may take without a word.
        requests: Keep a record of each request of a loop of our own.
        answer_forms: See `ScoringPlan`.
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
        """Serialise to one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """Parse what `to_json` wrote."""
        raw = json.loads(text)
        settings = dict(raw["settings"])
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
"""A message of the worker; `event` names it:

python    prefix, executable, version, versions (of what every worker imports), system: of a worker
          in another Python only, before all others
started   pid
loading
loaded    engine: dict[str, str] (describe()), dataset: {digest, samples, sizes, fixed_lengths (of
          answers), inputs (digests), input_s (of a sample)}, files (imported), load_s, pages (of
          its server's metrics)
warmed    warmup_s, takes_s (how long the run will take; None: its rate is probed)
probed    target_qps
running   phase ("performance" | "accuracy"), expected (samples), settings actually used (dict)
progress  phase, done (samples), outstanding (samples), fault (the first one, or None), elapsed_s;
          twice a second, also when nothing changed
finished  phase, folder (LoadGen's logs), result (dict, see `RunFinished`)
ready     the worker waits for a command
leaving   it was told to stop: the engine's __exit__ is called
error     layer, kind (class of the exception), message, designed (it is one of ours: the message
          says all), traceback; the worker ends after it
"""

Command = dict[str, Any]
"""A message of the parent; `command` names it:

accuracy  block (int), indices (list of data set indices): one accuracy run over these samples
stop      end in order
"""


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """What the worker measured itself during one LoadGen run, beside LoadGen's logs.

    Attributes:
        completed: Samples completed by the engine, each counted once.
        duration_s: From the first issue to the last completion, monotonic clock.
        within_se: Relative standard error of the throughput by batch means; 0 when unknown.
        token_metrics: What our own counts and stamps of tokens give, by metric, SI units.
        notes: What these stamps cannot show, in words.
        corrected: Our times per token are of other tokens than LoadGen's, which are all but one.
        hidden_share: Share of the tokens that nobody saw; None if the engine does not tell.
        faults: What the guard kept from LoadGen: unknown or repeated ids, missing outputs.
        client: How late an engine that is only a client was, see `Engine.client_lateness`.
        accepted_drafts: See `Engine.accepted_drafts`.
        contention: Who used the processor meanwhile, see `Contention`; None: not read.
        finishes: How often samples ended for which reason; empty: nobody tells.
        replicas: What each replica did, see `ReplicaRun`; empty: there are none.
        peak_bytes: What worker, replicas and servers had in memory at most, see
            `hardware.contention.peak_bytes`; None: not told.
        clock_moved_s: How far the wall clock was set meanwhile; above 0: forward.
        slow_start: What the first tenth of the run added, see `clocks.slow_start`.
        answer_counts: What the answers were, see `Engine.answer_counts`.
        answer_forms: The engine's form of answers and that of LoadGen's log; empty: both are alike.
        salt: The name by which the run's prompts were other ones, see `Sink`.
        stages: How long each stage of the engine took in the whole run, see `Engine.stage_seconds`.
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
