"""Test the store in a real PostgreSQL, started by an unprivileged user; skipped without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_mlperf.addons.history.spool import deliver
from pytest_mlperf.core.history import histories_of
from pytest_mlperf.core.results import Results
from pytest_mlperf.stores.database import StoreError, opened
from pytest_mlperf.stores.database._backends import MAX_ROW_BYTES
from pytest_mlperf.stores.database._store import MIGRATIONS
from pytest_mlperf.stores.results import read_results
from tests.stores.test_database import RECORDED, add, check_writers, numbered, written

pytestmark = pytest.mark.process

FOLDERS = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
"""Where Debian's package puts the server's programs, the newest first."""


@dataclass
class Server:
    """A server in a folder of its own, that listens to a socket there and to no network."""

    programs: Path
    folder: Path

    def run(self, program: str, *arguments: str) -> None:
        # PostgreSQL refuses to be run by root.
        user = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(
            command,
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            extra_groups=[] if user else None,
            **user,  # type: ignore[call-overload]
        )

    def start(self) -> None:
        options = f"-c listen_addresses='' -c fsync=off -k {self.folder}"
        self.run("pg_ctl", "start", "-w", "-s", "-o", options, "-l", str(self.folder / "log"))

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "-w", "-s", "-m", "immediate")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://mlperf@/{database}?host={self.folder}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg")
    if not FOLDERS:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    # Below a folder that another user may enter, which pytest's are not.
    folder = Path(tempfile.mkdtemp(prefix="mlperf-postgres-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        server = Server(FOLDERS[0], folder)
        server.run("initdb", "-U", "mlperf", "-A", "trust", "--no-sync")
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    """An empty database in it."""
    import psycopg

    name = f"db{abs(hash(request.node.name))}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@pytest.fixture(scope="module")
def session() -> Results:
    return read_results(RECORDED)


def test_it_keeps_the_same_rows_as_sqlite(session: Results, url: str) -> None:
    sessions = [numbered(session, number) for number in (3, 1, 2)]

    assert add(url, *sessions, sessions[0]) == [True, True, True, False]

    with opened(url) as store:
        assert store.session("run-1") == sessions[1]
        assert store.sessions() == ["run-1", "run-2", "run-3"]
        assert {one.run for one in store.latest()} == {"run-3"}
        by_key = {each.series.key: each for each in histories_of(sessions)}
        assert {each.series.key: each for each in store.histories()} == by_key


def test_writers_wait_for_each_other_also_when_they_make_the_tables(
    session: Results, url: str
) -> None:
    check_writers(url, session)


def test_other_tables_are_ignored_and_a_newer_store_is_refused(session: Results, url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    assert add(url, session) == [True]

    newer = (*MIGRATIONS, "ALTER TABLE mlperf_session ADD COLUMN host TEXT")
    with opened(url, write=True, migrations=newer) as store:
        assert store.sessions() == [session.run]
    with pytest.raises(StoreError, match=r"newer pytest-mlperf \(schema 2"):
        add(url, session)


def test_a_row_that_is_too_large_stays_on_the_server(session: Results, url: str) -> None:
    """As in SQLite: in any column, written by any client."""
    import psycopg

    add(url, session)
    large = f"repeat('x', {MAX_ROW_BYTES})"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"UPDATE mlperf_session SET document = {large}::bytea")
        connection.execute(f"UPDATE mlperf_build SET fingerprint = {large}")
        connection.execute(f"UPDATE mlperf_latest SET about = {large}")
    with opened(url) as store:
        for read in (lambda: store.session(session.run), store.histories, store.latest):
            with pytest.raises(StoreError, match=r'"a row of 67108864 bytes"$'):
                read()


def test_a_server_that_is_stopped_between_sessions_gets_them_later(
    server: Server, session: Results, url: str, tmp_path: Path
) -> None:
    sessions = [numbered(session, number) for number in (1, 2, 3)]
    files = [written(tmp_path, one) for one in sessions]
    first = deliver(url, tmp_path, sessions[0], files[0])
    server.stop()
    try:
        missed = deliver(url, tmp_path, sessions[1], files[1])
    finally:
        server.start()
    after = deliver(url, tmp_path, sessions[2], files[2])

    assert not first.reason
    assert missed.reason.startswith(f"{url}: connection")
    assert "\n" not in missed.line
    assert after.sent == 2
    assert after.line.endswith("; earlier sessions sent, too: 1")
    with opened(url) as store:
        assert store.sessions() == ["run-1", "run-2", "run-3"]
