"""Access SQLite and PostgreSQL by one interface, with errors that a user can act on."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, text_of
from pytest_mlperf.core.untrusted_text import quoted, visible
from pytest_mlperf.stores.atomic import disk_of

LOCK_TIMEOUT_SECONDS = 10.0
SQLITE, POSTGRES = "sqlite", ("postgresql", "postgres")

Row = Sequence[Any]


class StoreError(MlperfError):
    """Report that the results database cannot be used now; verdicts do not depend on it."""


USUAL = "sqlite"
"""Stands for the SQLite file in the folder of results."""


def store_of(options: Mapping[str, Any]) -> str:
    """Return URL or file of the results database that the option `store` selects; "" for none."""
    url = str(options.get("store") or "")
    return str(options["runs_dir"] / "results.db") if url == USUAL else url


def store_setting(text: str) -> str | Path:
    """Parse the option `store`: `USUAL`, a URL, or the path of a SQLite file; else MlperfError."""
    if text == USUAL:
        return text
    require_url(text)
    text = text.removeprefix("sqlite:///")
    return text if "://" in text else Path(text)


def require_url(url: str) -> None:
    """Raise an error if a URL is not one of a results database, or its library is missing."""
    scheme = _scheme(url)
    if scheme in POSTGRES:
        hosts = re.split("[/?#]", url.partition("://")[2])[0].rpartition("@")[2]
        if not _HOSTS.fullmatch(hosts):
            raise MlperfError(
                f"{shown_url(url)!r}: the port is not a number, or the password has a special "
                "character; write / as %2F, ? as %3F, # as %23, @ as %40"
            )
        if find_spec("psycopg") is None:
            raise EnvironmentFault("PostgreSQL needs: pip install 'pytest-mlperf[store]'")
    elif scheme not in {SQLITE, ""} or (not scheme and _masked(url) != url):
        raise MlperfError(
            f"{shown_url(url)!r} is not a results database; write sqlite:///FILE, "
            "postgresql://USER@HOST/DATABASE, or the path of a SQLite file"
        )
    elif not _file(url).name:
        raise MlperfError(f"{shown_url(url)!r} has no file; write sqlite:///FILE")


def shown_url(url: str) -> str:
    """Return a URL for messages: no password, and a SQLite file relative to the working folder."""
    if _scheme(url) in {SQLITE, ""}:
        if not _scheme(url) and _masked(url) != url:
            return _masked(url)
        file = _file(url)
        with contextlib.suppress(ValueError):
            file = file.absolute().relative_to(Path.cwd())
        return str(file)
    scheme, _, address = url.partition("://")
    user, at, location = _without_password(address)
    location, _, query = location.partition("#")[0].partition("?")
    pairs = [pair for pair in re.split("[&;]", query) if pair and not _is_secret(pair)]
    return f"{scheme}://{user}{at}{location}{'?' * bool(pairs)}{'&'.join(pairs)}"


_SECRET = re.compile("pass(?!file)|pwd|token|secret|credential|(api|access|private)[-_]?key", re.I)

_HOSTS = re.compile(r"((\[[^\]]*\]|[^:,\[\]]*)(:\d*)?(,|$))*")


_USER = re.compile(r"((\w+(:|//)/*)?[^:@/]*:).*@", re.S)

_PAIR = re.compile(rf"((^|[?&;\s])[^=/?&;\s]*({_SECRET.pattern})[^=/?&;\s]*=).*", re.I | re.S)


def _masked(typed: str) -> str:
    """Return an address without "://", with "***" instead of a possible password."""
    return _PAIR.sub(r"\1***", _USER.sub(r"\1***@", typed) if _USER.match(typed) else typed)


def _is_secret(pair: str) -> bool:
    return bool(_SECRET.search(unquote(pair)))


def _without_password(address: str) -> tuple[str, str, str]:
    """Return (user, "@", text after "@") without the password; ("", "", address) if no user."""
    end = address.partition("?")[0].rfind("@")
    if end < 0 and not _HOSTS.fullmatch(re.split("[/?#]", address)[0]):
        end = address.rfind("@") if "@" in address else len(address)
    if end < 0:
        return "", "", address
    return address[:end].partition(":")[0], "@", address[end + 1 :]


def without_secrets(text: str, url: str) -> str:
    """Return a database library's message without the URL's secrets that it may quote."""
    text = text.replace(url, shown_url(url))
    secret = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    pairs = filter(_is_secret, re.split("[&;#]", url.partition("?")[2]))
    for secret_text in filter(None, (secret, *(pair.partition("=")[2] for pair in pairs))):
        text = text.replace(secret_text, "***").replace(unquote(secret_text), "***")
    return text


def connect(url: str, *, write: bool) -> Backend:
    """Return a connection to a database; unless `write`, a SQLite file must already exist."""
    require_url(url)
    return _Postgres(url) if _scheme(url) in POSTGRES else _Sqlite(_file(url), write=write)


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def _file(url: str) -> Path:
    if not _scheme(url):
        return Path(url)
    # As SQLAlchemy has it: sqlite:///relative, sqlite:////absolute.
    return Path(unquote(url.partition("://")[2].removeprefix("/").partition("?")[0]))


_SQLITE_REASONS = {
    "SQLITE_BUSY": "it is locked by another program",
    "SQLITE_LOCKED": "it is locked by another program",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_NOTADB": "the file is not a SQLite database; name another",
    "SQLITE_CORRUPT": "the file is damaged; move it away, and import the results files again",
    "SQLITE_READONLY": "the file may not be written",
    "SQLITE_CANTOPEN": "the file cannot be opened",
}


MAX_ROW_BYTES = 64 * 2**20
"""Maximum size of a row, well above that of a compressed session."""


class _Sqlite:
    """Hold a connection to an SQLite file; statements outside of `transaction` commit at once."""

    shared = False
    """Whether other programs keep tables in it."""
    words: Mapping[str, str] = {
        "serial": "INTEGER PRIMARY KEY",
        "blob": "BLOB",
        "clustered": "WITHOUT ROWID",
    }
    """Values of the placeholders of the schema."""

    def __init__(self, file: Path, *, write: bool) -> None:
        self._file = file
        if file.exists() and not file.is_file():
            raise StoreError(f"{file}: is not a file; name a file for the store")
        if not write and not file.exists():
            raise StoreError(
                f"{file}: does not exist; create it: pytest-mlperf store import --store {file}"
            )
        with self._in_words():
            if write:
                file.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                file, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None
            )
        try:
            with self._in_words():
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
        except StoreError:
            self._connection.close()
            raise

    def execute(self, statement: str, values: Row = ()) -> list[tuple[Any, ...]]:
        with self._in_words():
            return self._connection.execute(statement, values).fetchall()

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        with self._in_words():
            self._connection.executemany(statement, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements inside the `with` block or none; exclude other writers."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # On a full disk SQLite may have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def tables(self) -> set[str]:
        rows = self.execute("SELECT type, name, sql FROM sqlite_master")
        for kind, name, statement in rows:
            # Views, triggers and virtual tables may run forever, or change what is written.
            if kind not in ("table", "index") or "VIRTUAL" in str(statement)[:20].upper():
                raise StoreError(
                    f"{self._file}: contains {kind} {quoted(name)}, which no store has; name "
                    "another file"
                )
        return {
            name for kind, name, _ in rows if kind == "table" and not name.startswith("sqlite_")
        }

    def tune(self) -> None:
        """Set WAL mode, which the file keeps; only for a database known to be this package's."""
        # In WAL mode readers and a writer do not block each other. The file keeps the mode; SQLite
        # refuses at once if it is in use, and a later writer sets it.
        with contextlib.suppress(StoreError):
            self.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Extended codes such as SQLITE_BUSY_SNAPSHOT begin with the basic code.
            name = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
            reason = _SQLITE_REASONS.get(name, text_of(error))
            disk = f" ({disk_of(self._file)}); free some space" * (name == "SQLITE_FULL")
            raise StoreError(f"{self._file}: {reason}{disk}") from None
        except OSError as error:
            raise StoreError(f"{self._file}: {error.strerror or error}") from None


_BOUNDED = """
SELECT * FROM ({query}) AS q
WHERE CAST(CASE WHEN octet_length(q::text) > {bytes} THEN 'a row of {bytes} bytes' END AS boolean)
IS NULL
"""
"""Query that fails for rows that are too large: the server's error names them."""


class _Postgres:
    shared = True
    words: Mapping[str, str] = {
        "serial": "INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "blob": "BYTEA",
        "clustered": "",
    }

    _ALONE = 0x6D6C7065  # "mlpe": the advisory lock of writers

    def __init__(self, url: str) -> None:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        self._url, self._error = url, psycopg.Error
        with self._in_words():
            usual = {
                "connect_timeout": str(round(LOCK_TIMEOUT_SECONDS)),
                "application_name": "pytest-mlperf",
                "options": f"-c lock_timeout={round(LOCK_TIMEOUT_SECONDS * 1e3)} -c "
                "client_min_messages=error",
            }
            address = make_conninfo(**{**usual, **conninfo_to_dict(url)})
            self._connection = psycopg.connect(address, autocommit=True)

    def execute(self, statement: str, values: Row = ()) -> list[tuple[Any, ...]]:
        if statement.startswith("SELECT ") and " FROM " in statement:
            statement = _BOUNDED.format(query=statement, bytes=MAX_ROW_BYTES)
        with self._in_words():
            cursor = self._connection.execute(statement.replace("?", "%s"), values or None)
            return cursor.fetchall() if cursor.description else []

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        with self._in_words(), self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), list(rows))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._in_words(), self._connection.transaction():
            self.execute("SELECT pg_advisory_xact_lock(?)", (self._ALONE,))
            yield

    def tables(self) -> set[str]:
        rows = self.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = ANY (current_schemas(false))"
        )
        return {str(name) for (name,) in rows}

    def tune(self) -> None:
        pass

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            # The lines after the first advise on other ways to connect.
            reason = text_of(error) if not str(error).strip() else str(error).splitlines()[0]
            message = visible(without_secrets(reason, self._url))
            raise StoreError(f"{shown_url(self._url)}: {message}") from None


Backend = _Sqlite | _Postgres
