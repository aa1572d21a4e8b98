"""Read GuideLLM's benchmarks.json; each strategy of a sweep becomes one point."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import LEAST_RANK, JsonObject, Values, number

_GUIDELLM_TIMES = {
    "request_latency": ("latency", 1.0),
    "time_to_first_token_ms": ("ttft", 1e-3),
    "inter_token_latency_ms": ("itl", 1e-3),
    "time_per_output_token_ms": ("tpot", 1e-3),
}
"""Metrics with their factor to seconds: the request latency is in seconds, the others are not."""

_GUIDELLM_RATES = {
    "requests_per_second": "requests_per_second",
    "output_tokens_per_second": "output_tokens_per_second",
    "tokens_per_second": "total_tokens_per_second",
    "prompt_tokens_per_second": "prompt_tokens_per_second",
}

_GUIDELLM_FACTS = {
    "model": "backend.model",
    "request format": "backend.request_format",
    "ramp-up [s]": "strategy.rampup_duration",
}


def _is_guidellm(document: ResultFile) -> bool:
    return any(
        "requests_per_second" in b.at("metrics") for b in document.head.entries("benchmarks")
    )


def _read(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    metadata = raw.at("metadata")
    version = metadata.get("version")
    benchmarks = raw.entries("benchmarks")
    note = f"GuideLLM's file version {version} is unknown; only fields of known ones were read"
    yield run_of(
        document,
        "guidellm",
        points=tuple(_point(benchmark, raw) for benchmark in benchmarks),
        started=min(filter(None, (b.moment("start_time") for b in benchmarks)), default=None),
        version=metadata.text("guidellm_version"),
        details=metadata.texts("python_version", "platform"),
        notes=() if version in {None, 1, 2} else (note,),
        duration_s=sum(filter(None, (b.number("duration") for b in benchmarks))) or None,
    )


def _point(raw: JsonObject, file: JsonObject) -> ToolPoint:
    measured = raw.at("metrics")
    values = Values()
    for key, (base, factor) in _GUIDELLM_TIMES.items():
        successful = measured.at(key, "successful")
        values.statistics(base, successful, factor)
        for name, value in successful.at("percentiles").items():
            digits = name[1:]  # p001 is 0.1 %, p999 is 99.9 %
            rank = f"{digits[:2]}.{digits[2:]}".rstrip(".")
            if digits.isdigit() and float(rank) >= LEAST_RANK:
                values.add(f"{base}_p{rank}", value, factor)
    for key, metric in _GUIDELLM_RATES.items():
        values.add(metric, measured.at(key, "successful").get("mean"))
    configuration = raw.at("config") or raw.at("args")
    target = str(configuration.at("slo") or "") or None
    values.goodput(measured.at("request_goodput", "successful").get("mean"), target)
    strategy, totals = configuration.at("strategy"), measured.at("request_totals")
    kind = str(strategy.get("type_", "load"))
    load = next(
        (strategy.plain(k) for k in ("streams", "max_concurrency", "rate") if strategy.get(k)), None
    )
    total, cut = totals.whole("total"), totals.whole("incomplete") or 0
    sent = None if total is None else total - cut
    values.requests(sent, totals.whole("successful"), totals.whole("errored"))
    sizes = (f"{side}_token_count" for side in ("prompt", "output"))
    values.lengths(1, *(measured.at(size, "successful").get("mean") for size in sizes))
    values.share("incomplete requests", cut, total)
    values.facts |= {
        **configuration.facts(_GUIDELLM_FACTS),
        "warm-up": Fact(str(configuration.get("warmup") or "none")),
        "cool-down": Fact(str(configuration.get("cooldown") or "none")),
        "constraints": Fact(_constraints(configuration.at("constraints") or file.at("args"))),
    }
    return values.point(
        # The sweep finds rates by itself, so that no two runs have the same.
        kind if load is None else f"{kind} {Fact(load).text}",
        axis=load if isinstance(load, float) else None,
    )


def _constraints(limits: JsonObject) -> str | None:
    words = []
    for name in (name for name in limits if name.startswith(("max_", "min_"))):
        index = limits.at(name).whole("current_index") or 0
        values = limits.at(name, "args") or limits.at(name) or {"": limits[name]}
        lists = (value if isinstance(value, list) else [value] for value in values.values())
        amounts = (number(amounts[min(index, len(amounts) - 1)]) for amounts in lists if amounts)
        words += [f"{name} {amount:g}" for amount in amounts if amount is not None]
    return ", ".join(words) or None


GUIDELLM = Reader(title="GuideLLM", recognise=_is_guidellm, read=_read)
