"""Read the points of a curve from the folder of a run, with the keys of MLCommons' files.

The keys are those that endpoints-submission-cli 1.5.3.0 checks. Files of MLCommons' client are
copied; files about runs of this project's own load generator state that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import MlperfError, RunError, Verdict, __version__
from pytest_mlperf.core.metrics import at_point
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import (
    EVENTS_FILE,
    MLC_ENDPOINTS,
    Run,
    json_text,
    parse_json,
    read_configuration,
    read_point,
)
from pytest_mlperf.run.curve import read_curve
from pytest_mlperf.run.worker.point_window import CURVE_LOG, PointWindow
from pytest_mlperf.stores.endpoints import (
    ACCURACY_FILE,
    CONFIG,
    RESULT_TITLE,
    SUMMARY_FILE,
    file_of,
    read_events,
    yaml_text,
)
from pytest_mlperf.stores.foreign import content_of

CLIENT_NAME = f"pytest-mlperf {__version__}"
THROUGHPUT_SLACK_SHARE = 1e-6
"""Allowed relative difference of throughput between a folder and the results."""

MAX_COPIED_BYTES = 2**26
LATENCIES = ("ttft", "tpot", "latency")

Warmup = Mapping[str, Any] | None
"""Warm-up of point.yaml; None if it was not recorded."""


def has_result(folder: Path) -> bool:
    """Return whether a run folder contains a result file."""
    return file_of(folder, SUMMARY_FILE) is not None


def is_run_folder(folder: Path) -> bool:
    """Return whether MLCommons' client wrote into a folder, even if the run is incomplete."""
    return has_result(folder) or (folder / CONFIG).exists()


@dataclass(frozen=True, kw_only=True)
class Point:
    """Hold one point of a curve, with the keys of MLCommons' files.

    Attributes:
        tokens_per_second: Output tokens per second of all requests.
        settings: `runtime_settings` of point.yaml.
        files: Content by file name: result_summary.json, config.yaml, and accuracy_results.json
            if the point has scores.
    """

    concurrency: int
    tokens_per_second: float
    settings: Mapping[str, Any]
    warmup: Warmup
    files: Mapping[str, bytes]


def points_of(run: Run, verdict: Verdict, root: Path) -> list[Point]:
    """Return a run's points by concurrency; MlperfError if its folder is missing or changed."""
    folder = root / run.folder
    subject = verdict.subject
    theirs = subject is not None and subject.identity.get("harness") == MLC_ENDPOINTS
    if not folder.is_dir():
        raise MlperfError(
            f"{folder} is missing, and without it the settings of each point are unknown: run "
            "the command where the results were made"
        )
    if theirs:
        inside = [folder] if has_result(folder) else sorted(filter(has_result, folder.iterdir()))
        points = [_theirs(each) for each in inside]
    else:
        points = _ours(folder, subject.fingerprint if subject else {})
    points.sort(key=lambda point: point.concurrency)
    _require_same(points, run, folder)
    return points


def _require_same(points: Sequence[Point], run: Run, folder: Path) -> None:
    name = "tokens_per_second"
    judged = {key for key in run.metrics if key.startswith(f"{name}@")}
    if not judged:
        raise MlperfError("MLPerf Endpoints needs token counts, which this curve lacks")
    if judged != {at_point(name, point.concurrency) for point in points} or any(
        abs(run.metrics[at_point(name, p.concurrency)] / p.tokens_per_second - 1)
        > THROUGHPUT_SLACK_SHARE
        for p in points
    ):
        raise MlperfError(
            f"{folder} was changed after the run: its points differ from the results file; restore "
            "it, or measure again"
        )


def _theirs(folder: Path) -> Point:
    recorded, config = read_point(folder), read_configuration(folder)
    runtime, client = "settings.runtime.", "settings.client."
    seeds = ("scheduler_random_seed", "dataloader_random_seed")
    scheduler, sample_index = (_whole(config.get(f"{runtime}{name}", "")) for name in seeds)
    return Point(
        concurrency=recorded.concurrency,
        tokens_per_second=recorded.metrics.get("tokens_per_second", 0.0),
        settings={
            "load_pattern": "concurrency",
            "min_duration_ms": int(config.get(f"{runtime}min_duration_ms", "0")),
            "stream_all_chunks": config.get(f"{client}stream_all_chunks") == "True",
            "runtime": _seeds(scheduler, sample_index, _whole(config.get("model_params.seed", ""))),
            "warmup": {"salt": config.get("settings.warmup.salt") == "True"},
        },
        warmup=_their_warmup(folder, config, recorded.concurrency),
        files={
            CONFIG: content_of(folder / CONFIG, RESULT_TITLE, MAX_COPIED_BYTES),
            **{
                name: content_of(path, RESULT_TITLE, MAX_COPIED_BYTES)
                for name in (SUMMARY_FILE, ACCURACY_FILE)
                if (path := file_of(folder, name))
            },
        },
    )


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _their_warmup(folder: Path, config: Mapping[str, str], concurrency: int) -> Warmup:
    where = "settings.warmup."
    if config.get(f"{where}enabled") != "True":
        return _warmup(0, 0.0, concurrency)
    requests = _whole(config.get(f"{where}n_requests", ""))
    waited = config.get(f"{where}drain") == "True"
    if not requests or not waited or not (folder / EVENTS_FILE).exists():
        return None
    return _warmup(requests, read_events(folder).warm_ns / 1e9, concurrency)


def _ours(folder: Path, fingerprint: Mapping[str, str]) -> list[Point]:
    spec = folder.parent / "spec.json"
    try:
        content = parse_json(content_of(spec, "description of a run", MAX_COPIED_BYTES))
        settings, sent = content["settings"], content["engine"]["options"].get("extra", {})
        seeds, length_ms = settings["seeds"], settings["min_duration_ms"]
        common = {
            "load_pattern": "concurrency",
            "min_duration_ms": length_ms,
            "stream_all_chunks": True,
            "runtime": _seeds(seeds["schedule"], seeds["sample_index"], sent.get("seed")),
            "warmup": {"salt": False},
        }
        windows = read_curve(folder / CURVE_LOG).points
    except (ValueError, TypeError, KeyError, RunError) as error:
        raise MlperfError(f"{folder} is not the run folder of a curve: {error}") from None
    if any(window.turns for window in windows):
        raise MlperfError(
            f"{folder} has a curve of conversations, and only curves of single prompts can be "
            "written for MLPerf Endpoints"
        )
    return [
        Point(
            concurrency=int(window.point),
            tokens_per_second=window.metrics.get("tokens_per_second", 0.0),
            settings=common,
            warmup=_warmup(window.warm_requests, window.warm_s, int(window.point)),
            files={
                SUMMARY_FILE: json_text(_summary(window)).encode(),
                CONFIG: yaml_text(
                    {
                        "harness": CLIENT_NAME,
                        "concurrency": int(window.point),
                        "settings": settings,
                        "fingerprint": dict(fingerprint),
                    }
                ),
            },
        )
        for window in windows
    ]


def _summary(window: PointWindow) -> dict[str, Any]:
    """Return a point's measurements as fields of MLCommons' result_summary.json (times in ns)."""
    times = {
        name: {
            "percentiles": {
                str(percent): window.metrics[key] * 1e9
                for percent in (50, 90, 99)
                if (key := f"{name}_p{percent}") in window.metrics
            }
        }
        for name in LATENCIES
    }
    return {
        "version": CLIENT_NAME,
        "test_started_at": round(window.begin_s * 1e9),
        "n_samples_issued": window.requests,
        "n_samples_completed": window.requests,
        "n_samples_failed": 0,
        "duration_ns": round(window.duration_s * 1e9),
        "state": "complete",
        "complete": True,
        **times,
        "output_sequence_lengths": {"total": window.tokens},
        "finish_reason_counts": dict(window.finishes),
        "notes": f"measured by {CLIENT_NAME}, not by MLCommons' client; {UNVERIFIED_LABEL}",
    }


def _seeds(scheduler: int | None, sample_index: int | None, model: int | None) -> dict[str, Any]:
    return {
        "scheduler_rng_seed": scheduler,
        "sample_index_rng_seed": sample_index,
        **({} if model is None else {"model_seed": model}),
    }


def _warmup(completed: int, took_s: float, concurrency: int) -> Warmup:
    return {
        "duration_s": round(took_s, 3),
        "requests_issued": completed,
        "requests_completed": completed,
        "data_source": "samples of the measured data set" if completed else "none",
        "concurrency": concurrency if completed else 0,
    }
