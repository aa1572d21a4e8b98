"""Read results of pytest-benchmark, Google Benchmark, hyperfine and llama-bench."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import fmean

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import Fact, Quantity, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import SECONDS_PER_UNIT, JsonObject, Values
from pytest_mlperf.judge import Direction

CLOCK_TOLERANCE = 0.02
"""Relative difference of clock rates that their measurement explains."""

_ROUNDS = "rounds and repetitions of one process count as one run"

_MACHINE_FACTS = {
    "CPUs": "cpu.count",
    "architecture": "machine",
    "Python": "python_implementation",
}

_PYTEST_FACTS = {
    "timer": "options.timer",
    "GC disabled": "options.disable_gc",
    "warm-up": "options.warmup",
}


def _pytest_benchmark(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    machine = raw.at("machine_info")
    facts = machine.facts(_MACHINE_FACTS)
    facts["CPU"] = Fact(machine.at("cpu").plain("brand_raw") or machine.plain("cpu"))
    points = []
    for benchmark in raw.entries("benchmarks"):
        values = Values()
        values.statistics("time", benchmark.at("stats"))
        name = str(benchmark.get("fullname") or benchmark.get("name"))
        values.facts |= facts | benchmark.facts(_PYTEST_FACTS)
        points.append(values.point(name))
    yield run_of(
        document,
        "pytest-benchmark",
        points=tuple(points),
        started=raw.moment("datetime"),
        host=machine.text("node"),
        commit=_commit(raw.at("commit_info")),
        version=raw.text("version"),
        details=machine.texts("python_version", "system", "release"),
        notes=(f"pytest-benchmark: {_ROUNDS}; --mlperf-judge-benchmarks starts several processes",),
    )


def _commit(commit: JsonObject) -> str | None:
    name = commit.text("id") or "unknown"
    dirty = "+changes" if commit.get("dirty") is True else ""
    return None if name in {"unknown", "unversioned"} else f"{name[:12]}{dirty}"


PYTEST_BENCHMARK = Reader(
    title="pytest-benchmark",
    recognise=has_keys("machine_info", "benchmarks"),
    read=_pytest_benchmark,
)

_GOOGLE = {
    *("name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions"),
    *("repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit", "label"),
    *("error_occurred", "error_message", "skipped", "skip_message", "aggregate_name"),
    *("aggregate_unit", "bytes_per_second", "items_per_second", "allocs_per_iter"),
    *("max_bytes_used", "total_allocated_bytes", "net_heap_growth"),
}
"""Keys of Google Benchmark; others are counters of the user."""

_GOOGLE_QUANTITIES = {
    "cpu_time": Quantity("CPU time", "s", Direction.LOWER),
    "rate": Quantity("items/s", "1/s", Direction.HIGHER),
}

_CONTEXT_FACTS = {
    "CPUs": "num_cpus",
    "build type": "library_build_type",
    "CPU scaling": "cpu_scaling_enabled",
}


def _google(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    context = raw.at("context")
    schema = context.get("json_schema_version", 1)
    rows: dict[str, list[JsonObject]] = defaultdict(list)
    for row in raw.entries("benchmarks"):
        rows[str(row.get("run_name") or row.get("name"))].append(row)
    rows = {
        name: [row for row in of if row.get("run_type") != "aggregate"]
        or [row for row in of if row.get("aggregate_name") == "median"]
        for name, of in rows.items()
    }
    clock = Fact(context.number("mhz_per_cpu"), tolerance=CLOCK_TOLERANCE)
    shared = context.facts(_CONTEXT_FACTS)
    caches = (
        " ".join(c.texts("level", "type", "size").values()) for c in context.entries("caches")
    )
    shared["CPU caches"] = Fact(", ".join(sorted(caches)) or None)
    shared["CPU clock [MHz]"] = clock
    yield run_of(
        document,
        "google-benchmark",
        points=tuple(_google_point(n, of, shared) for n, of in rows.items() if of),
        started=context.moment("date"),
        host=context.text("host_name"),
        version=context.text("library_version"),
        notes=(
            *((f"Google Benchmark: {_ROUNDS}",) if any(len(r) > 1 for r in rows.values()) else ()),
            *((f"Google Benchmark's schema is {schema}; known is 1",) if schema != 1 else ()),
        ),
    )


def _google_point(name: str, rows: list[JsonObject], shared: Mapping[str, Fact]) -> ToolPoint:
    values = Values()
    figures: dict[str, list[float]] = defaultdict(list)
    errors = [row for row in rows if row.get("error_occurred") is True]
    for row in rows:
        unit = str(row.get("time_unit", "ns"))
        if row.get("skipped") or row in errors:
            values.absent["time_mean"] = "skipped"
            continue
        if unit not in SECONDS_PER_UNIT:
            values.absent["time_mean"] = f"its unit {unit!r} is unknown"
            continue
        fields = {"time_mean": "real_time", "cpu_time": "cpu_time", "rate": "items_per_second"}
        fields |= {key: key for key in ("bytes_per_second", *(row.keys() - _GOOGLE))}
        for metric, key in fields.items():
            factor = SECONDS_PER_UNIT[unit] if key in {"real_time", "cpu_time"} else 1.0
            if (value := row.positive(key, factor)) is not None:
                figures[metric].append(value)
    if not figures:
        values.absent.setdefault("time_mean", "the file has no time of it")
    values.metrics = {metric: fmean(of) for metric, of in figures.items()}
    values.facts |= {**shared, **rows[0].facts({"threads": "threads"})}
    error = f"error: {str(errors[0].get('error_message', ''))[:80]}" if errors else ""
    return values.point(name, quantities=_GOOGLE_QUANTITIES, broken=error)


GOOGLE = Reader(title="Google Benchmark", recognise=has_keys("context", "benchmarks"), read=_google)


def _hyperfine(document: ResultFile) -> Iterator[ToolRun]:
    points = []
    for raw in document.head.entries("results"):
        values = Values()
        values.statistics("time", raw)
        codes = raw.get("exit_codes")
        codes = codes if isinstance(codes, list) else []
        bad = [code for code in codes if code != 0]
        failed = f"{len(bad)} of {len(codes)} runs failed, first exit code {next(iter(bad), 0)}"
        values.facts["parameters"] = Fact(str(raw.get("parameters") or "") or None)
        points.append(values.point(str(raw["command"]), broken=failed if bad else ""))
    note = "hyperfine: runs of the command in one session count as one run"
    yield run_of(document, "hyperfine", points=tuple(points), notes=(note,))


HYPERFINE = Reader(
    title="hyperfine",
    recognise=lambda document: any(
        raw.keys() >= {"command", "mean"} for raw in document.head.entries("results")
    ),
    read=_hyperfine,
)

_LLAMA_FACTS = {
    "model type": "model_type",
    "model size": "model_size",
    "parameters": "model_n_params",
    "batch": "n_batch",
    "micro-batch": "n_ubatch",
    "threads": "n_threads",
    "K cache": "type_k",
    "V cache": "type_v",
    "GPU layers": "n_gpu_layers",
    "flash attention": "flash_attn",
    "GPU": "gpu_info",
    "CPU": "cpu_info",
    "split mode": "split_mode",
    "CPU experts": "n_cpu_moe",
    "tensor split": "tensor_split",
    "KV cache off GPU": "no_kv_offload",
    "load mode": "load_mode",
    "devices": "devices",
}


def _llama_bench(document: ResultFile) -> Iterator[ToolRun]:
    points: list[ToolPoint] = []
    for raw in document.objects:
        prompt, generated, depth = (raw.get(key) or 0 for key in ("n_prompt", "n_gen", "n_depth"))
        tests = ((prompt, "pp"), (generated, "tg"))
        name = "+".join(f"{title}{count}" for count, title in tests if count)
        name += f" at depth {depth}" if depth else ""
        same = sum(point.name.partition(" #")[0] == name for point in points)
        values = Values(raw, {"tokens_per_second": "avg_ts"})
        name = f"{name} #{same + 1}" if same else name
        values.facts |= raw.facts(_LLAMA_FACTS)
        points.append(values.point(name))
    raw = document.head
    yield run_of(
        document,
        "llama-bench",
        points=tuple(points),
        started=raw.moment("test_time"),
        commit=raw.text("build_commit"),
        version=raw.text("build_number"),
        details=raw.texts("backends", "model_filename"),
        notes=("llama-bench: repetitions of one process count as one run",),
    )


LLAMA_BENCH = Reader(
    title="llama-bench",
    recognise=has_keys("avg_ts", "n_prompt", "n_gen"),
    read=_llama_bench,
)
