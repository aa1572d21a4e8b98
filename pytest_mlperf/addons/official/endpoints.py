"""Write a run of a curve as a submission to MLPerf Endpoints.

Layout and keys are those that endpoints-submission-cli 1.5.3.0 checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_mlperf import MlperfError, Verdict
from pytest_mlperf.addons.official.about import About
from pytest_mlperf.addons.official.curve_points import CLIENT_NAME, Point
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import json_text, parse_json, visible
from pytest_mlperf.rounds.endpoints import endpoint_rules, region_of, seed_sets
from pytest_mlperf.stores.endpoints import ACCURACY_FILE, SUMMARY_FILE, yaml_text

README = "README.md"

SCORED = ("low_latency", "low_concurrency", "med_concurrency", "high_concurrency")
"""Regions that need scores at one point; those of the maximum count for Offline too."""


def bundle(points: Sequence[Point], about: About, verdict: Verdict) -> dict[str, bytes]:
    """Return the content of a submission's files by path."""
    curve, source = f"results/{about.system}/{about.model}", f"src/{about.implementation}"
    most = max(point.tokens_per_second for point in points)
    scored = _scored(points, about).values()
    files = {
        f"docs/{README}": f"# {about.description['system_name']}\n\n{UNVERIFIED_LABEL}\n".encode(),
        f"{source}/{README}": _readme(about, verdict).encode(),
    }
    for point in points:
        folder = f"{curve}/r{point.concurrency}"
        content = _point(point, [each.concurrency for each in points], about)
        described = {**about.description, "tps_utilization": point.tokens_per_second / most}
        files[f"{folder}/point.yaml"] = yaml_text(content)
        files[f"{folder}/system_desc.json"] = json_text(described).encode()
        files |= {
            f"{folder}/{name}": each
            for name, each in point.files.items()
            if name != ACCURACY_FILE or point.concurrency in scored
        }
    if about.power:
        power = {"system_desc_id": about.system, **about.power}
        files[f"results/{about.system}/system_power.json"] = json_text(power).encode()
    return files


def _point(point: Point, every: Sequence[int], about: About) -> dict[str, Any]:
    runtime = point.settings["runtime"]
    pair = (runtime["scheduler_rng_seed"], runtime["sample_index_rng_seed"])
    bound = [n for n, own in seed_sets().items() if pair == (own.scheduler, own.sample_index)]
    content = {
        "concurrency": point.concurrency,
        "region": region_of(point.concurrency, every, about.highest),
        "offline": "elected" if point.concurrency == about.highest else "none",
        "dataset": about.point["dataset_name"],
        "runtime_settings": point.settings,
        **({"warmup": point.warmup} if point.warmup else {}),
        **({"seed_set": bound[0]} if bound else {}),
        "division": about.description["division"],
        "max_supported_concurrency": about.highest,
        "shared_src": f"src/{about.implementation}",
        "shared_docs": "docs",
    }
    if taken := sorted(content.keys() & about.point.keys()):
        raise MlperfError(f"the --about file must not set point.{taken[0]}: the run determines it")
    return {**content, **about.point}


def _readme(about: About, verdict: Verdict) -> str:
    subject = verdict.subject
    facts = {**subject.identity, **subject.fingerprint} if subject else {}
    rows = "".join(f"| {visible(k)} | `{visible(str(v))}` |\n" for k, v in sorted(facts.items()))
    return (
        f"# {about.implementation}\n\n{UNVERIFIED_LABEL}\n\nWhat the run recorded of case "
        f"`{verdict.case.id}`, by {CLIENT_NAME}:\n\n| | |\n|---|---|\n{rows}\n"
    )


def _scored(points: Sequence[Point], about: About) -> dict[str, int]:
    """Return, by region of the curve, the highest concurrency that has accuracy scores."""
    every = [point.concurrency for point in points]
    by_region = {
        region_of(point.concurrency, every, about.highest): point.concurrency
        for point in points
        if ACCURACY_FILE in point.files
    }
    return {region: by_region[region] for region in SCORED if region in by_region}


def unused_scores(points: Sequence[Point], about: About) -> list[int]:
    """Return scored concurrencies that are not submitted: a curve region has one score."""
    scored = _scored(points, about).values()
    return [
        p.concurrency for p in points if ACCURACY_FILE in p.files and p.concurrency not in scored
    ]


def shortfalls(points: Sequence[Point], about: About) -> list[str]:
    """Return the known reasons for which MLCommons' checker would refuse a submission."""
    lacks = curve_defects([point.concurrency for point in points], about.highest)
    if unscored := [region for region in SCORED if region not in _scored(points, about)]:
        lacks.append(
            "no accuracy scores by MLCommons' client (accuracy_results.json) in these regions: "
            f"{', '.join(unscored)}"
        )
    if about.highest not in {point.concurrency for point in points}:
        lacks.append(
            f"no point at concurrency {about.highest:,}, system.max_supported_concurrency, which "
            "counts as Offline"
        )
    if any(point.warmup is None for point in points) and "warmup" not in about.point:
        lacks.append(
            "the warm-up was not recorded (no events.jsonl); add point.warmup to the --about file"
        )
    if any(map(_unaccounted, points)):
        lacks.append(
            "runs that ended by time left requests in flight, which MLPerf counts as lost: "
            "measure with whole_passes = true"
        )
    pairs = {(own.scheduler, own.sample_index) for own in seed_sets().values()}
    runtimes = [point.settings["runtime"] for point in points]
    if any((r["scheduler_rng_seed"], r["sample_index_rng_seed"]) not in pairs for r in runtimes):
        lacks.append('the seeds are not from a published set: measure with seed_set = "A"')
    if any("model_seed" not in runtime for runtime in runtimes):
        lacks.append(
            "requests had no sampling seed: set seed_set (engine endpoints) or "
            "extra = { seed = ... } (engine openai)"
        )
    return lacks


def curve_defects(concurrencies: Sequence[int], max_concurrency: int) -> list[str]:
    """Return messages on the rules that a curve's concurrencies break; [] if they break none."""
    rules = endpoint_rules()["curve"]
    if min(concurrencies) > rules["ultra_low"]:
        return [f"no point is in region ultra_low (1 to {rules['ultra_low']} requests)"]
    present = {region_of(point, concurrencies, max_concurrency) for point in concurrencies}
    lacks = [
        f"no point is in region {name}"
        for name in ("low_concurrency", "med_concurrency", "high_concurrency")
        if name not in present
    ]
    fewest, count = rules["fewest"], len(concurrencies)
    few = [f"it has {count} of {fewest} required points"] if count < fewest else []
    beyond = [
        f"point {p:,} is above the maximum, {max_concurrency:,}"
        for p in concurrencies
        if not region_of(p, concurrencies, max_concurrency)
    ]
    return [*few, *lacks, *beyond]


def _unaccounted(point: Point) -> bool:
    summary = parse_json(point.files[SUMMARY_FILE])
    ended = summary["n_samples_completed"] + summary["n_samples_failed"]
    return bool(ended != summary["n_samples_issued"])
