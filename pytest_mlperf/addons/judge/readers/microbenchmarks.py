"""Read pytest-benchmark, Google Benchmark, hyperfine and llama-bench."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import HIGHER, LOWER, Fact, Quantity, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    SECONDS_PER_UNIT,
    Values,
    facts_of,
    mapping,
    moment,
    number,
    plain,
    positive,
    text,
    texts,
)

CLOCK_TOLERANCE = 0.02
"""Relative difference of clock rates that their measurement explains."""

_ROUNDS = "rounds and repetitions of one process count as one run"


def _list_of(document: ResultFile, key: str) -> list[Mapping[str, Any]]:
    entries = document.head.get(key)
    return [one for one in entries if isinstance(one, Mapping)] if isinstance(entries, list) else []


def _is_pytest_benchmark(document: ResultFile) -> bool:
    return "machine_info" in document.head and isinstance(document.head.get("benchmarks"), list)


def _pytest_benchmark(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    machine, commit = (mapping(raw, key) for key in ("machine_info", "commit_info"))
    about = machine.get("cpu")
    cpu = plain(about.get("brand_raw")) if isinstance(about, Mapping) else plain(about)
    cpus = plain(about.get("count")) if isinstance(about, Mapping) else None
    points = []
    for one in _list_of(document, "benchmarks"):
        stats = mapping(one, "stats")
        values = Values()
        values.statistics("time", stats)
        points.append(
            ToolPoint(
                name=str(one.get("fullname") or one.get("name")),
                **values.fields,
                facts={"CPU": Fact(cpu), "CPUs": Fact(cpus)},
            )
        )
    yield run_of(
        document,
        "pytest-benchmark",
        points=tuple(points),
        started=moment(raw.get("datetime")),
        host=text(machine, "node"),
        commit=_commit(commit),
        version=text(raw, "version"),
        details=texts(machine, "python_version", "system", "release"),
        notes=(f"pytest-benchmark: {_ROUNDS}; --mlperf-judge-benchmarks measures in processes",),
    )


def _commit(commit: Mapping[str, Any]) -> str | None:
    name = texts(commit, "id").get("id", "unknown")
    dirty = "+changes" if commit.get("dirty") is True else ""
    return None if name in {"unknown", "unversioned"} else f"{name[:12]}{dirty}"


PYTEST_BENCHMARK = Reader(
    title="pytest-benchmark", recognise=_is_pytest_benchmark, read=_pytest_benchmark
)


def _is_google(document: ResultFile) -> bool:
    return "context" in document.head and isinstance(document.head.get("benchmarks"), list)


_GOOGLE = {
    *("name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions"),
    *("repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit", "label"),
    *("error_occurred", "error_message", "skipped", "skip_message", "aggregate_name"),
    *("aggregate_unit", "bytes_per_second", "items_per_second", "allocs_per_iter"),
    *("max_bytes_used", "total_allocated_bytes", "net_heap_growth"),
}


def _google(document: ResultFile) -> Iterator[ToolRun]:
    context = mapping(document.head, "context")
    schema = context.get("json_schema_version", 1)
    rows: dict[str, list[Mapping[str, Any]]] = {}
    medians: dict[str, Mapping[str, Any]] = {}
    for row in _list_of(document, "benchmarks"):
        name = str(row.get("run_name") or row.get("name"))
        if row.get("run_type") != "aggregate":
            rows.setdefault(name, []).append(row)
        elif row.get("aggregate_name") == "median":
            medians[name] = row
    shared = {
        "CPUs": Fact(plain(context.get("num_cpus"))),
        "CPU clock [MHz]": Fact(number(context.get("mhz_per_cpu")), tolerance=CLOCK_TOLERANCE),
        "build type": Fact(plain(context.get("library_build_type"))),
    }
    names = list(dict.fromkeys([*rows, *medians]))
    yield run_of(
        document,
        "google-benchmark",
        points=tuple(_google_point(n, rows.get(n) or [medians[n]], shared) for n in names),
        started=moment(context.get("date")),
        host=text(context, "host_name"),
        version=text(context, "library_version"),
        notes=(
            *((f"Google Benchmark: {_ROUNDS}",) if any(len(r) > 1 for r in rows.values()) else ()),
            *((f"Google Benchmark's schema {schema} is unknown",) if schema != 1 else ()),
        ),
    )


def _google_point(
    name: str, rows: list[Mapping[str, Any]], shared: Mapping[str, Fact]
) -> ToolPoint:
    """Return a benchmark's means over its repetitions, all in one process."""
    absent: dict[str, str] = {}
    values: dict[str, list[float]] = defaultdict(list)
    errors = [row for row in rows if row.get("error_occurred") is True]
    for row in rows:
        unit = str(row.get("time_unit", "ns"))
        if row.get("skipped") or row in errors:
            absent["time_mean"] = "skipped"
            continue
        if unit not in SECONDS_PER_UNIT:
            absent["time_mean"] = f"its unit {unit!r} is unknown"
            continue
        fields = {"time_mean": "real_time", "cpu_time": "cpu_time", "rate": "items_per_second"}
        fields |= {key: key for key in ("bytes_per_second", *(row.keys() - _GOOGLE))}
        for metric, key in fields.items():
            factor = SECONDS_PER_UNIT[unit] if key in {"real_time", "cpu_time"} else 1.0
            if (value := positive(row.get(key), factor)) is not None:
                values[metric].append(value)
    if not values and not absent:
        absent["time_mean"] = "no time in the file"
    return ToolPoint(
        name=name,
        metrics={metric: sum(entries) / len(entries) for metric, entries in values.items()},
        absent=absent,
        facts={**shared, "threads": Fact(plain(rows[0].get("threads")))},
        quantities={
            "cpu_time": Quantity("CPU time", "s", LOWER),
            "rate": Quantity("items/s", "1/s", HIGHER),
        },
        broken=f"error: {str(errors[0].get('error_message', ''))[:80]}" if errors else "",
    )


GOOGLE = Reader(title="Google Benchmark", recognise=_is_google, read=_google)


def _is_hyperfine(document: ResultFile) -> bool:
    entries = _list_of(document, "results")
    return bool(entries) and "command" in entries[0] and "mean" in entries[0]


def _hyperfine(document: ResultFile) -> Iterator[ToolRun]:
    points = []
    for one in _list_of(document, "results"):
        values = Values()
        values.statistics("time", one)
        codes = one.get("exit_codes")
        codes = codes if isinstance(codes, list) else []
        bad = [code for code in codes if code != 0]
        failed = f"{len(bad)} of {len(codes)} runs of the command ended with {bad[:1]}"
        parameters = one.get("parameters")
        points.append(
            ToolPoint(
                name=str(one["command"]),
                **values.fields,
                facts={"parameters": Fact(str(parameters) if parameters else None)},
                broken=failed if bad else "",
            )
        )
    note = "hyperfine: runs of the command in one session count as one run"
    yield run_of(document, "hyperfine", points=tuple(points), notes=(note,))


HYPERFINE = Reader(title="hyperfine", recognise=_is_hyperfine, read=_hyperfine)


def _is_llama_bench(document: ResultFile) -> bool:
    return {"avg_ts", "n_prompt", "n_gen"} <= document.head.keys()


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
}


def _llama_bench(document: ResultFile) -> Iterator[ToolRun]:
    objects = document.objects
    points: list[ToolPoint] = []
    for raw in objects:
        counts = [raw.get(key) or 0 for key in ("n_prompt", "n_gen", "n_depth")]
        tests = ((counts[0], "pp"), (counts[1], "tg"))
        words = [f"{title}{count}" for count, title in tests if count]
        name = "+".join(words) + (f" at depth {counts[2]}" if counts[2] else "")
        same = sum(point.name.partition(" #")[0] == name for point in points)
        values = Values()
        values.add("tokens_per_second", raw.get("avg_ts"))
        facts = facts_of(raw, _LLAMA_FACTS)
        name = f"{name} #{same + 1}" if same else name
        points.append(ToolPoint(name=name, **values.fields, facts=facts))
    head = objects[0]
    yield run_of(
        document,
        "llama-bench",
        points=tuple(points),
        started=moment(head.get("test_time")),
        commit=text(head, "build_commit"),
        version=text(head, "build_number"),
        details=texts(head, "backends", "model_filename"),
        notes=("llama-bench: repetitions of one process count as one run",),
    )


LLAMA_BENCH = Reader(title="llama-bench", recognise=_is_llama_bench, read=_llama_bench)
