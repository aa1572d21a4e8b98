"""A second transcription of MLPerf's rounds, made from the originals and not from our TOML files.

Sources: mlperf.conf, MODEL_CONFIG, RESULT_FIELD_BENCHMARK_OVERWRITE, LLM_LATENCY_LIMITS and
OFFLINE_MIN_SPQ_SINCE_V4 of mlcommons/inference, as each round had them. One row per workload and
table; `rows` reads them.

SEEDS: sample library, sample index, schedule.

SIZES: workload, checker's name, samples, in memory, of accuracy runs where others, tokens of an
answer (fewest-most/most in accuracy runs), equal issue (e), token latencies (t), tokens inferred
(i and how many), the checker's name of Interactive, compliance tests.

RUNS: workload, scenarios in the datacenter and at the edge (O Offline, S Server, I Interactive,
1 SingleStream, M MultiStream; after + optional; after @ the only target), samples of Offline,
limits of Server and Interactive (ms, or TTFT/TPOT in ms), reported figures.

GATES: workload, targets in % (with the checker's suffix or, in brackets, without), then the
checker's keys with references: times the target; v: better when lower; *a..b: shares of the
reference; =a..b: scores.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

_TABLES = tomllib.loads((Path(__file__).parents[1] / "data/rounds.toml").read_text("utf-8"))
SEEDS: dict[str, tuple[int, ...]] = {name: tuple(seeds) for name, seeds in _TABLES["seeds"].items()}
SIZES: dict[str, str] = _TABLES["sizes"]
RUNS: dict[str, str] = _TABLES["runs"]
GATES: dict[str, str] = _TABLES["gates"]
NAMES: dict[str, str] = _TABLES["names"]
NAMES_OF_WORKLOADS: dict[str, str] = _TABLES["names_of_workloads"]
SCORERS: dict[str, str] = _TABLES["scorers"]
HARNESSES: dict[str, list[str]] = _TABLES["harnesses"]
CHECKSUMS: dict[str, dict[str, str]] = _TABLES["checksums"]
MEANING: dict[str, list[str | float]] = _TABLES["meaning"]
CHECKER_NAMES: dict[str, list[str]] = _TABLES["checker_names"]
NOT_IN_MLPERF_CONF: dict[str, int] = _TABLES["not_in_mlperf_conf"]

OWN_OF_A_SCENARIO = {
    # accuracy samples, and the gate
    ("v6.1", "qwen3-vl-235b-a22b", "Interactive"): (8000, "F1_HIERARCHICAL 0.7878"),
}

KITS19_MD5: str = _TABLES["kits19"]["md5"]
"""meta/checksum_inference.json of 3d-unet-kits19; the same at every tag."""


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of a table by workload; a backslash continues a row."""
    row_list = [line.split() for line in table.strip().splitlines()]
    assert len({row[0] for row in row_list}) == len(row_list)
    return {row[0]: row[1:] for row in row_list}
