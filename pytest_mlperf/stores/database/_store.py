"""Store whole sessions in tables that migrations create, and read the history of cases."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar

from pydantic import TypeAdapter

from pytest_mlperf.core import history
from pytest_mlperf.core.results import Results
from pytest_mlperf.core.untrusted import inflate, parse_json
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.stores.database._backends import Backend, StoreError, connect, shown_url
from pytest_mlperf.stores.foreign import MAX_FILE_BYTES, StrictValidator, rejection_reason
from pytest_mlperf.stores.results import as_bytes, from_bytes

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


VERSION_TABLE = "mlperf_schema"
Key = TypeVar("Key", str, int)

MAX_STATEMENT_KEYS = 500
"""Keys per statement; SQLite accepts a few thousand."""


@contextmanager
def opened(
    url: str, *, write: bool = False, migrations: Sequence[str] = MIGRATIONS
) -> Iterator[Store]:
    """Open a results database; `write` creates or migrates it; StoreError if it is unusable."""
    backend = connect(url, write=write)
    try:
        _require_schema(backend, shown_url(url), migrations, write=write)
        if write:
            backend.tune()
        yield Store(backend, shown_url(url))
    finally:
        backend.close()


def _require_schema(backend: Backend, url: str, migrations: Sequence[str], *, write: bool) -> None:
    version = _version(backend, url)
    if version > len(migrations):
        raise StoreError(
            f"{url}: written by a newer pytest-mlperf (schema {version}; this one knows up to "
            f"{len(migrations)}): upgrade"
        )
    if version == len(migrations):
        return
    if not write and not version:
        raise StoreError(
            f"{url}: holds no sessions yet; add one: pytest-mlperf store "
            "import RESULTS.json --store URL"
        )
    with backend.transaction():  # another writer may have migrated it since
        for number in range(_version(backend, url), len(migrations)):
            for statement in migrations[number].format(**backend.words).split(";"):
                backend.execute(statement)
            if not number:
                backend.execute(f"CREATE TABLE {VERSION_TABLE} (version INTEGER NOT NULL)")
                backend.execute(f"INSERT INTO {VERSION_TABLE} VALUES (0)")
            backend.execute(f"UPDATE {VERSION_TABLE} SET version = ?", (number + 1,))


def _version(backend: Backend, url: str) -> int:
    tables = backend.tables()
    if VERSION_TABLE in tables:
        rows = backend.execute(f"SELECT version FROM {VERSION_TABLE}")
        if len(rows) != 1 or type(rows[0][0]) is not int or rows[0][0] < 0:
            raise StoreError(f"{url}: damaged: {VERSION_TABLE} has no version")
        return int(rows[0][0])
    # Programs share a database of PostgreSQL, but not a file of SQLite.
    if tables and not backend.shared:
        raise StoreError(f"{url}: is a database of another program; name another file")
    return 0


class Store:
    """Read and write the results of sessions in a database."""

    def __init__(self, backend: Backend, url: str) -> None:
        self._backend, self.place = backend, url

    def add(self, results: Results) -> bool:
        """Store a session; return False if already stored; StoreError if its id is in use."""
        content = as_bytes(results)
        if reason := rejection_reason(content):
            raise StoreError(f"{self.place}: session {results.run} is not stored: {reason}")
        digest = hashlib.sha256(content).hexdigest()
        points, latest = list(history.points_of_session(results)), list(history.latest_of(results))
        with self._backend.transaction():
            there = self._backend.execute(
                "SELECT digest FROM mlperf_session WHERE run = ?", (results.run,)
            )
            if there:
                if there[0][0] != digest:
                    raise StoreError(
                        f"{self.place}: session {results.run} is stored already, with other "
                        "results; the stored one was not changed"
                    )
                return False
            self._backend.execute(
                "INSERT INTO mlperf_session (run, started, commit_id, digest, document) "
                "VALUES (?, ?, ?, ?, ?)",
                (results.run, results.started, results.commit, digest, zlib.compress(content, 1)),
            )
            self._add_points(points)
            self._add_latest(latest)
        return True

    def sessions(self) -> list[str]:
        """Return the ids of all sessions, oldest first."""
        rows = self._backend.execute("SELECT run FROM mlperf_session ORDER BY started, run")
        return [str(run) for (run,) in rows]

    def session(self, run: str) -> Results:
        """Return the session with the id `run`; raise StoreError if it is not stored."""
        rows = self._backend.execute("SELECT document FROM mlperf_session WHERE run = ?", (run,))
        if not rows:
            raise StoreError(f"{self.place}: has no session {run!r}")
        with self._undamaged(f"session {run!r}"):
            content = inflate(rows[0][0], MAX_FILE_BYTES)
        return from_bytes(f"{self.place}: session {run}", content)

    @contextmanager
    def _undamaged(self, part: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            reason = str(error).split("\n")[0]
            raise StoreError(f"{self.place}: {part} is damaged: {visible(reason)}") from None

    def cases(self) -> list[str]:
        """Return the ids of all cases."""
        rows = self._backend.execute("SELECT DISTINCT case_id FROM mlperf_series ORDER BY 1")
        return [str(case) for (case,) in rows]

    def histories_with(self, results: Results) -> dict[str, list[history.CaseHistory]]:
        """Return the histories of a session's cases by case id, including the session itself."""
        now = {series.key: (series, point) for series, point in history.points_of_session(results)}
        histories: dict[str, list[history.CaseHistory]] = {}
        for case in dict.fromkeys(series.case.id for series, _ in now.values()):
            for stored in self.histories(case):
                if (latest := now.get(stored.series.key)) is None:
                    continue
                points = [point for point in stored.points if point.run != results.run]
                points = sorted([*points, latest[1]], key=lambda point: (point.started, point.run))
                whole = history.CaseHistory(series=stored.series, points=points)
                histories.setdefault(case, []).append(whole)
        return histories

    def histories(
        self, case: str | None = None, metric: str | None = None
    ) -> list[history.CaseHistory]:
        """Return the histories of a case and a metric (None: all of them), see `histories_of`."""
        filters = {"s.case_id = ?": case, "s.metric = ?": metric}
        where = {column: value for column, value in filters.items() if value is not None}
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        points = self._points(condition, list(where.values()))
        about = self._backend.execute(
            f"SELECT s.id, s.about FROM mlperf_series s {condition} ORDER BY s.id",
            list(where.values()),
        )
        with self._undamaged("a row of mlperf_series"):
            return [
                history.CaseHistory(series=_SERIES.check(parse_json(text)), points=points[number])
                for number, text in about
                if number in points
            ]

    def _points(
        self, condition: str, values: Sequence[str]
    ) -> dict[int, list[history.SessionPoint]]:
        rows = self._backend.execute(
            "SELECT p.series, p.started, p.run, p.commit_id, p.value, p.runs, p.baseline, "
            "p.outcome, p.failed, p.accepted, p.build "
            "FROM mlperf_point p JOIN mlperf_series s ON s.id = p.series "
            f"{condition} ORDER BY p.series, p.started, p.run",
            values,
        )
        builds = self._builds({row[-1] for row in rows})
        points: dict[int, list[history.SessionPoint]] = {}
        for number, started, run, commit, value, runs, base, outcome, failed, accepted, b in rows:
            # Positional for speed: there may be a million points.
            fields = (started, run, commit, value, runs, base, outcome)
            if tuple(map(type, fields)) not in _POINT_TYPES or b not in builds:
                raise StoreError(
                    f"{self.place}: a row of mlperf_point is damaged; import the results files "
                    "into a new store"
                )
            flags = bool(failed), bool(accepted)
            point = history.SessionPoint(
                run, started, commit, value, runs, base, outcome, *flags, builds[b]
            )
            points.setdefault(number, []).append(point)
        return points

    def _builds(self, numbers: set[int]) -> dict[int, dict[str, str]]:
        texts = self._looked_up("mlperf_build", ("id", "fingerprint"), sorted(numbers))
        with self._undamaged("a row of mlperf_build"):
            return {number: _BUILD.check(parse_json(text)) for number, text in texts.items()}

    def latest(self) -> list[history.LatestVerdict]:
        """Return the newest verdict of each test, for each accelerator class."""
        rows = self._backend.execute("SELECT about FROM mlperf_latest ORDER BY test, accelerator")
        with self._undamaged("a row of mlperf_latest"):
            return [_LATEST.check(parse_json(text)) for (text,) in rows]

    def _add_points(
        self, points: Sequence[tuple[history.CaseSeries, history.SessionPoint]]
    ) -> None:
        keys = [one.key for one, _ in points]
        series = {key: one for key, (one, _) in zip(keys, points, strict=True)}
        builds = [json.dumps(dict(one.fingerprint), sort_keys=True) for _, one in points]
        numbers = self._numbers(
            "mlperf_series",
            ("series_key", "case_id", "metric", "about"),
            {key: (key, one.case.id, one.metric, _written(one)) for key, one in series.items()},
        )
        build_keys = {text: hashlib.sha256(text.encode()).hexdigest()[:32] for text in builds}
        build_numbers = self._numbers(
            "mlperf_build",
            ("build_key", "fingerprint"),
            {key: (key, text) for text, key in build_keys.items()},
        )
        self._backend.many(
            "INSERT INTO mlperf_point (series, started, run, commit_id, value, runs, baseline, "
            "outcome, failed, accepted, build) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            [
                (
                    numbers[key],
                    *_POINT_VALUES(point),
                    int(point.failed),
                    int(point.accepted),
                    build_numbers[build_keys[build]],
                )
                for key, build, (_, point) in zip(keys, builds, points, strict=True)
            ],
        )

    def _numbers(
        self, table: str, columns: Sequence[str], rows: Mapping[str, Sequence[Any]]
    ) -> dict[str, int]:
        numbers = self._looked_up(table, (columns[0], "id"), list(rows))
        missing = [row for key, row in rows.items() if key not in numbers]
        if missing:
            marks = ", ".join("?" * len(columns))
            self._backend.many(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", missing
            )
            numbers |= self._looked_up(table, (columns[0], "id"), [row[0] for row in missing])
        return numbers

    def _looked_up(
        self, table: str, columns: tuple[str, str], keys: Sequence[Key]
    ) -> dict[Key, Any]:
        key, value = columns
        values: dict[Key, Any] = {}
        for begin in range(0, len(keys), MAX_STATEMENT_KEYS):
            part = keys[begin : begin + MAX_STATEMENT_KEYS]
            marks = ", ".join("?" * len(part))
            statement = f"SELECT {key}, {value} FROM {table} WHERE {key} IN ({marks})"
            values |= dict(self._backend.execute(statement, part))
        return values

    def _add_latest(self, verdicts: Sequence[history.LatestVerdict]) -> None:
        self._backend.many(
            "INSERT INTO mlperf_latest (test, accelerator, started, about) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (test, accelerator) DO UPDATE SET started = excluded.started, "
            "about = excluded.about WHERE excluded.started >= mlperf_latest.started",
            [(one.test, one.accelerator, one.started, _written(one)) for one in verdicts],
        )


_SERIES, _LATEST, _BUILD = (
    StrictValidator(history.CaseSeries),
    StrictValidator(history.LatestVerdict),
    StrictValidator(dict[str, str]),
)

_POINT_VALUES = attrgetter("started", "run", "commit", "value", "runs", "baseline", "outcome")
_POINT_TYPES = frozenset(
    product((str,), (str,), (str, NoneType), (int, float), (int,), (int, float, NoneType), (str,))
)


def _written(value: history.CaseSeries | history.LatestVerdict) -> str:
    return TypeAdapter(type(value)).dump_json(value).decode()
