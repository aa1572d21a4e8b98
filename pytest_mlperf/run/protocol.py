"""What parent and worker say to each other: a spec file, then JSON lines both ways.

Parent to worker, on the worker's stdin: one `Command` per line. End of file means that the parent
is gone; the worker then ends its whole process group.
Worker to parent, on the descriptor named by `--events`: one `Event` per line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Scenario = Literal["Offline", "Server", "SingleStream", "MultiStream"]
"""LoadGen's scenarios; MLPerf's Interactive is LoadGen's Server with other limits."""


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Something to build in the worker: `target` is "package.module:name"."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a data set must be; checked before the engine is loaded.

    Attributes:
        samples: How many it must have; None: any number.
        whose: Whose number that is, in words.
        digest: The digest it must have; None: any.
    """

    samples: int | None = None
    whose: str = ""
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """LoadGen's three seeds; each round has its own."""

    qsl: int
    sample_index: int
    schedule: int


@dataclass(frozen=True, kw_only=True)
class LoadGenSettings:
    """Everything that a LoadGen run is told; nothing comes from LoadGen's own defaults.

    Attributes:
        scenario: LoadGen's scenario.
        seeds: The round's seeds.
        target_qps: Offered samples/s (Server), expected samples/s (Offline), expected queries/s
            (SingleStream, MultiStream); None lets the worker probe it.
        min_duration_ms: LoadGen's shortest run.
        min_query_count: LoadGen's fewest queries (Offline: fewest samples).
        fixed_work_s: Quick profile only: offer this many seconds' worth of work at `target_qps`
            as a fixed number of queries, so that every run does the same work however fast it is;
            `min_duration_ms` and `min_query_count` are then lower bounds of LoadGen's own check.
        performance_samples: Samples kept in memory during the run.
        latency_limit_ns: Server: the latency that `latency_percentile` of queries must meet.
        latency_percentile: Server, SingleStream, MultiStream: the percentile, e.g. 0.99.
        samples_per_query: MultiStream: samples in one query.
        equal_issue: Offline: issue every sample equally often (sample_concatenate_permutation).
        tokens: Language models: tokens are counted and timed.
        ttft_limit_ns, tpot_limit_ns: Server, language models: what 99 % of queries must meet, in
            place of `latency_limit_ns`.
    """

    scenario: Scenario
    seeds: Seeds
    target_qps: float | None = None
    min_duration_ms: int
    min_query_count: int
    fixed_work_s: float | None = None
    performance_samples: int
    latency_limit_ns: int | None = None
    latency_percentile: float = 0.99
    samples_per_query: int = 8
    equal_issue: bool = False
    tokens: bool = False
    ttft_limit_ns: int | None = None
    tpot_limit_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker process: one engine load, a performance run, then accuracy blocks on demand.

    Attributes:
        folder: Existing folder of this run, absolute.
        engine: Engine factory; called with dataset, model, precision and its options.
        dataset: Data set factory; called with its options.
        expected: What the data set must be.
        model: Path or name of the model, or None.
        precision: The suite's word, e.g. "fp32".
        settings: How LoadGen runs the case.
        performance: Do the performance run.
        handicap: Share of speed taken away, 0 ≤ handicap < 1; work takes 1/(1-handicap) as long.
        warmup_s: Shortest warm-up.
        import_path: Folders that the parent imports from: a factory may be in a test module.
        import_first: Elsewhere: folders that come before all others.
        import_not: Elsewhere: folders that must not be imported from.
        environment: Elsewhere: variables that the worker sets itself.
    """

    folder: str
    engine: Factory
    dataset: Factory
    model: str | None
    precision: str
    settings: LoadGenSettings
    expected: Expected = Expected()
    performance: bool = True
    handicap: float = 0.0
    warmup_s: float = 0.5
    import_path: Sequence[str] = ()
    import_first: Sequence[str] = ()
    import_not: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

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
            }
        )


Event = dict[str, Any]
"""A message of the worker; `event` names it:

python    prefix, executable, version, versions (of what every worker imports), system: of a worker
          in another Python only, before all others
started   pid
loading
loaded    engine: dict[str, str] (describe()), dataset: {digest, samples}, load_s
warmed    warmup_s
probed    target_qps
running   phase ("performance" | "accuracy"), expected (samples), settings actually used (dict)
progress  phase, done (samples), outstanding (samples), fault (the first one, or None), elapsed_s;
          twice a second, also when nothing changed
finished  phase, folder (LoadGen's logs), result (dict, see `Finished`)
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
class Finished:
    """What the worker measured itself during one LoadGen run, beside LoadGen's logs.

    Attributes:
        issued: Samples LoadGen issued.
        completed: Samples completed by the engine, each counted once.
        duration_s: From the first issue to the last completion, monotonic clock.
        within_se: Relative standard error of the throughput by batch means; 0 when unknown.
        token_metrics: What our own counts and stamps of tokens give, by metric, SI units.
        notes: What these stamps cannot show, in words.
        faults: What the guard kept from LoadGen: unknown or repeated ids, missing outputs.
        completing_threads: Threads that reported completions.
        client: How late an engine that is only a client was, see `Engine.client_lateness`.
    """

    issued: int
    completed: int
    duration_s: float
    within_se: float
    token_metrics: Mapping[str, float]
    notes: Sequence[str]
    faults: Sequence[str]
    completing_threads: int
    client: Mapping[str, float] = field(default_factory=dict)
