"""Define the tables of a store by migrations, each from one version to the next."""

from __future__ import annotations

FIRST_TABLES = """
CREATE TABLE mlperf_session (
    run TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    commit_id TEXT,
    digest TEXT NOT NULL,
    document {blob} NOT NULL
);
CREATE INDEX mlperf_session_started ON mlperf_session (started);
CREATE TABLE mlperf_series (
    id {serial},
    series_key TEXT NOT NULL UNIQUE,
    case_id TEXT NOT NULL,
    metric TEXT NOT NULL,
    about TEXT NOT NULL
);
CREATE INDEX mlperf_series_case ON mlperf_series (case_id, metric);
CREATE TABLE mlperf_build (
    id {serial},
    build_key TEXT NOT NULL UNIQUE,
    fingerprint TEXT NOT NULL
);
CREATE TABLE mlperf_point (
    series INTEGER NOT NULL REFERENCES mlperf_series (id),
    started TEXT NOT NULL,
    run TEXT NOT NULL REFERENCES mlperf_session (run),
    commit_id TEXT,
    value DOUBLE PRECISION NOT NULL,
    runs INTEGER NOT NULL,
    baseline DOUBLE PRECISION,
    outcome TEXT NOT NULL,
    failed INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    build INTEGER NOT NULL REFERENCES mlperf_build (id),
    PRIMARY KEY (series, started, run)
) {clustered};
CREATE TABLE mlperf_latest (
    test TEXT NOT NULL,
    accelerator TEXT NOT NULL,
    started TEXT NOT NULL,
    about TEXT NOT NULL,
    PRIMARY KEY (test, accelerator)
)
"""

MIGRATIONS: tuple[str, ...] = (FIRST_TABLES,)
"""Item n leads to version n + 1; statements end with ";". Released ones never change: append."""
