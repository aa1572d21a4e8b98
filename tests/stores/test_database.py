"""The store: sessions go in once and come out as they were, whatever is in the way."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.addons.history.spool import deliver, folder_of
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.history import histories_of
from pytest_mlperf.core.results import Results
from pytest_mlperf.stores.database import StoreError, _backends, opened, shown_url, store_setting
from pytest_mlperf.stores.database._backends import without_secrets
from pytest_mlperf.stores.database._store import MIGRATIONS
from pytest_mlperf.stores.results import read_results, write_results

RECORDED = Path(__file__).parents[1] / "data" / "replay" / "unchanged" / "results.json"


@pytest.fixture(scope="module")
def session() -> Results:
    return read_results(RECORDED)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "results.db")


def numbered(session: Results, number: int) -> Results:
    return replace(session, run=f"run-{number}", started=f"2026-11-{number:02}T00:00:00+00:00")


def add(url: str, *sessions: Results) -> list[bool]:
    with opened(url, write=True) as store:
        return [store.add(one) for one in sessions]


def test_a_session_is_kept_once_and_comes_out_as_it_went_in(session: Results, url: str) -> None:
    assert add(url, session, session) == [True, False]
    assert add(url, session) == [False]
    with pytest.raises(StoreError, match="is stored already, with other results"):
        add(url, replace(session, seconds=1.0))

    with opened(url) as store:
        assert store.sessions() == [session.run]
        assert store.session(session.run) == session
        assert store.histories() == histories_of([session])


def test_histories_are_those_of_the_results_files(session: Results, url: str) -> None:
    """The latest verdict is that of the newest session; slowed and pretended ones do not count."""
    sessions = [numbered(session, number) for number in (3, 1, 2)]
    slowed = [replace(case, handicap=0.5) for case in session.cases[:2]]
    pretended = [replace(case, pretended=True) for case in session.cases[2:]]
    add(url, *sessions)

    with opened(url) as store:
        histories, latest = store.histories(), store.latest()
        (history,) = store.histories(histories[0].series.case.id, "throughput")

    by_key = {each.series.key: each for each in histories_of(sessions)}
    assert {each.series.key: each for each in histories} == by_key
    assert [point.run for point in history.points] == ["run-1", "run-2", "run-3"]
    assert {one.run for one in latest} == {"run-3"}
    assert {one.test for one in latest} == {case.test for case in session.cases}
    assert not histories_of([replace(session, cases=(*slowed, *pretended))])


def check_writers(url: str, session: Results) -> None:
    """Let four threads write nine sessions, three of them twice."""
    together = threading.Barrier(4)

    def write(first: int) -> None:
        together.wait()
        for number in range(first, first + 3):
            add(url, numbered(session, number))

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 4, 7, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with opened(url) as store:
        assert store.sessions() == [f"run-{number}" for number in range(1, 10)]
        assert all(len(one.points) == 9 for one in store.histories())


def test_writers_wait_for_each_other(session: Results, url: str) -> None:
    check_writers(url, session)


def test_a_migration_keeps_all_that_a_store_holds_also_if_it_breaks(
    session: Results, url: str
) -> None:
    add(url, session)
    newer = (*MIGRATIONS, "ALTER TABLE mlperf_session ADD COLUMN host TEXT")
    broken = (*MIGRATIONS, f"{newer[-1]}; SELECT nonsense")

    with pytest.raises(StoreError, match="nonsense"), opened(url, write=True, migrations=broken):
        pass
    with opened(url) as store:
        assert store.session(session.run) == session
    with opened(url, write=True, migrations=newer) as store:
        assert store.session(session.run) == session
    with pytest.raises(StoreError, match=r"newer pytest-mlperf \(schema 2; .* up to 1\): upgrade"):
        add(url, session)


def _anothers(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


def _cut_off(file: Path) -> None:
    add(str(file), read_results(RECORDED))
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)


def test_a_file_that_is_not_a_store_is_refused_and_stays(tmp_path: Path, session: Results) -> None:
    damages: dict[str, Callable[[Path], object]] = {
        "is not a SQLite database; name another": lambda file: file.write_text(
            "no database\n" * 100
        ),
        "is a database of another program": _anothers,
        "is damaged; move it away": _cut_off,
        "is not a file": Path.mkdir,
    }
    for number, (reason, damage) in enumerate(damages.items()):
        file = tmp_path / f"{number}.db"
        damage(file)
        content = file.read_bytes() if file.is_file() else None
        with pytest.raises(StoreError, match=reason):
            add(str(file), numbered(session, 1))
        assert (file.read_bytes() if file.is_file() else None) == content


def test_a_password_is_never_shown_and_a_url_of_no_store_is_refused(url: str) -> None:
    """Reading makes no store."""
    urls = {
        "postgresql://ci:secret@db:5432/perf": "postgresql://ci@db:5432/perf",
        "postgres://ci@db/perf?password=secret&sslmode=off": "postgres://ci@db/perf?sslmode=off",
        "mysql://a:secret@c/d": "mysql://a@c/d",
        "mysql://a:secret@c:x/d?apikey=secret": "mysql://a@c:x/d",
        "postgresql://db:5432,[::1]:5433/perf": "postgresql://db:5432,[::1]:5433/perf",
        "postgresql://ci:sec/ret@db/perf": "postgresql://ci@db/perf",
        "postgresql://ci:secret?secret@db/perf": "postgresql://ci@db/perf",
        "postgresql://ci:secret#@db/perf#secret": "postgresql://ci@db/perf",
        "postgresql://ci:secret/": "postgresql://ci@",
        "postgresql://db/perf?sslpassword=secret&sslmode=off;pass%77ord=secret": (
            "postgresql://db/perf?sslmode=off"
        ),
        "postgresql://db/perf?oauth_client_secret=secret&Api_Key=secret&sslkey=a": (
            "postgresql://db/perf?sslkey=a"
        ),
        "postgresql://db/perf?user=ci;PASSWORD=secret&access_token=secret&passfile=a": (
            "postgresql://db/perf?user=ci&passfile=a"
        ),
        "sqlite:////srv/results.db": "/srv/results.db",
        "some/results.db": "some/results.db",
    }

    assert {url: shown_url(url) for url in urls} == urls
    message = without_secrets(
        "no \"postgresql://ci:sec%20ret@h/d?token=a%2Fb\": 'sec ret', sec%20ret, a/b",
        "postgresql://ci:sec%20ret@h/d?token=a%2Fb",
    )
    assert message == "no \"postgresql://ci@h/d\": '***', ***, ***"
    for other in ("postgresql://ci:sec/ret@db/perf", "postgresql://ci:a?@db", "postgresql://[x"):
        with pytest.raises(MlperfError, match="write / as %2F"):
            store_setting(other)
    for other in ("mysql://a@c/d", "sqlite://", "http://x/y.db"):
        with pytest.raises(MlperfError, match="sqlite:///FILE"), opened(other):
            pass
    with (
        pytest.raises(StoreError, match="does not exist; create it: pytest-mlperf store import"),
        opened(url),
    ):
        pass
    assert not Path(url).exists()


def test_a_url_typed_without_its_slashes_is_refused_and_keeps_its_secret() -> None:
    """Paths with such characters are none, or are written as sqlite:///FILE."""
    typed = {
        "postgresql:ci:secret@db/perf": "postgresql:ci:***@db/perf",
        "postgresql:/ci:secret:/@secret@db": "postgresql:/ci:***@db",
        "postgres//ci:secret@db": "postgres//ci:***@db",
        "ci:secret@db/perf?sslpassword=secret": "ci:***@db/perf?sslpassword=***",
        "db/perf?user=ci&Password=secret&a=secret": "db/perf?user=ci&Password=***",
        "host=db password='sec ret' dbname=perf": "host=db password=***",
    }
    for url, url_shown in typed.items():
        assert shown_url(url) == url_shown
        with pytest.raises(MlperfError) as caught:
            store_setting(url)
        assert str(caught.value).startswith(
            f"{url_shown!r} is not a results database; write sqlite:///FILE, postgresql://"
        )
    for file in (
        "/srv/a:1/b@2/results.db",
        "/srv/token=1/results.db",
        "a@b.db",
        "a:b.db",
        "a=b.db",
    ):
        store_setting(file)
        assert shown_url(file) == file


def written(tmp_path: Path, session: Results) -> Path:
    file = tmp_path / "runs" / session.run / "results.json"
    write_results(file, session)
    return file


def test_a_session_missed_by_a_locked_store_is_delivered_after_the_next_one(
    tmp_path: Path, session: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backends, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.chdir(tmp_path)
    first, two = numbered(session, 1), numbered(session, 2)
    add("results.db", session)
    other = sqlite3.connect("results.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    missed = deliver("results.db", tmp_path, first, written(tmp_path, first))
    other.close()
    after = deliver("results.db", tmp_path, two, written(tmp_path, two))

    folder = folder_of(tmp_path, "results.db").relative_to(tmp_path)
    assert missed.line == (
        "store: results not sent: results.db: it is locked by another program; kept in "
        f"{folder}; the next session sends them"
    )
    assert after.line == "store: results.db; earlier sessions sent, too: 1"
    assert not (tmp_path / "unsent").exists()
    with opened("results.db") as store:
        assert set(store.sessions()) == {session.run, "run-1", "run-2"}


def test_a_full_disk_costs_the_store_its_session_and_not_its_content(
    tmp_path: Path, session: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add("results.db", session)
    connect = sqlite3.connect

    def full(*arguments: object, **named: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)  # type: ignore[call-overload]
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")  # as SQLite sees a full disk
        return connection

    monkeypatch.setattr(sqlite3, "connect", full)
    session_results = numbered(session, 1)
    delivery = deliver("results.db", tmp_path, session_results, written(tmp_path, session_results))
    monkeypatch.setattr(sqlite3, "connect", connect)

    assert re.fullmatch(
        r"results\.db: the disk is full \(file system /.*: .* MiB free\); free some space",
        delivery.reason,
    )
    assert delivery.waiting
    with opened("results.db") as store:
        assert store.sessions() == [session.run]


def test_a_waiting_file_that_is_damaged_is_set_aside(tmp_path: Path, session: Results) -> None:
    """A session whose own file could not be written is still sent."""
    url = str(tmp_path / "results.db")
    folder = folder_of(tmp_path, url)
    folder.mkdir(parents=True)
    (folder / "run-0.json").write_text("{", "utf-8")

    first = deliver(url, tmp_path, session, written(tmp_path, session))
    first_session = numbered(session, 1)
    second = deliver(url, tmp_path, first_session, tmp_path / "never" / "results.json")

    assert first.sent == 1
    assert "an earlier session cannot be stored" in first.line
    assert (folder / "run-0.json.refused").exists()
    assert (second.notes, second.reason) == ([], "")
    with opened(url) as store:
        assert set(store.sessions()) == {session.run, "run-1"}
