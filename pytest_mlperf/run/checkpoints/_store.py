"""Store built checkpoints atomically: a killed builder leaves no incomplete checkpoint.

<key>/model/ is what engines load, and <key>/provenance.json records its sources. <key>.lock and
.<key>.<random>.tmp/ exist during a build.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.project import ignored_in_git
from pytest_mlperf.stores import atomic

SUFFIXES = frozenset({".safetensors", ".json", ".model", ".txt", ".jinja", ".tiktoken"})
"""Files of a model that a builder may read, and that may be loaded with its result."""

WEIGHTS_SUFFIX = ".safetensors"

BLOCK_BYTES = 1 << 22

SETTLED_SECONDS = 2.0
"""A file changed this recently may change again with the same time stamp."""

MAX_CALIBRATION_FILES = 10_000
"""Limit of calibration files to check; larger sets are read each time."""


PIPELINE = "model_index.json"
"""Replaces config.json in a diffusers pipeline, whose parts are folders next to it."""

CONFIGURATIONS = ("config.json", PIPELINE)


def is_pipeline(folder: Path) -> bool:
    """Check whether a folder, or a subfolder as in MLPerf, contains a diffusion pipeline."""
    return any(
        path.is_file() for pattern in (PIPELINE, f"*/{PIPELINE}") for path in folder.glob(pattern)
    )


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model, or of all parts of a diffusion pipeline, sorted by name."""
    pattern = "**/*" if is_pipeline(folder) else "*"
    files = sorted(p for p in folder.glob(pattern) if p.suffix in SUFFIXES and p.is_file())
    if not any(path.suffix == WEIGHTS_SUFFIX for path in files):
        raise RunError(
            "build",
            f"{folder}: has no safetensors files to quantise; files that can contain code "
            "(.bin) are not read",
        )
    return files


def digests(folder: Path, files: Sequence[Path], show: Callable[[str], None]) -> dict[str, str]:
    """Return hex SHA-256 of each file, by path relative to `folder`; report progress to `show`."""
    total, done, shown_s = sum(path.stat().st_size for path in files), 0, time.monotonic()
    by_name: dict[str, str] = {}
    for path in files:
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
                    done += len(block)
                    if time.monotonic() - shown_s > 1:
                        shown_s = time.monotonic()
                        show(f"reading the model, {done / 1e9:.1f} of {total / 1e9:.1f} GB")
        except OSError as error:
            raise RunError("build", f"{path} cannot be read: {error.strerror}") from None
        by_name[path.relative_to(folder).as_posix()] = digest.hexdigest()
    return by_name


def hash_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


# --- memory ----------------------------------------------------------------------------------


class Memory:
    """Cache the key of a checkpoint, so that unchanged source files are not hashed again."""

    def __init__(
        self, builds: Path | None, about: Mapping[str, Any], files: Sequence[Path]
    ) -> None:
        self._file: Path | None = None
        looked = list(_looks(files))
        newest = max((look[-1] for look in looked), default=0)
        self._settled = time.time() - newest / 1e9 > SETTLED_SECONDS
        if builds is not None and len(looked) <= MAX_CALIBRATION_FILES:
            self._file = builds / ".known" / hash_of([about, looked])

    def recall(self) -> str | None:
        if self._file is None:
            return None
        try:
            return self._file.read_text("utf-8").strip() or None
        except OSError:
            return None

    def keep(self, key: str) -> None:
        if self._file is not None and self._settled:
            with contextlib.suppress(OSError):
                atomic.write_text(self._file, f"{key}\n")


def _looks(files: Sequence[Path]) -> Iterator[tuple[str, int, int, int, int, int]]:
    for path in files:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside[: MAX_CALIBRATION_FILES + 1]:
            with contextlib.suppress(OSError):
                s = file.stat()
                yield str(file), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


PROVENANCE_VERSION = 1
"""Version of provenance.json, and of a key's contents."""

SHARED = "PYTEST_MLPERF_BUILDS"
"""Variable with a folder of builds for several projects or machines."""

POLL_SECONDS = 0.2


SHOWN_DIGITS = 16
"""Digits of digests in the fingerprint, as engines report them."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Hold a quantised model, and the record of its build."""

    folder: Path
    provenance: Mapping[str, Any]

    @property
    def seconds(self) -> float | None:
        """Time that the build took [s]; None if unknown."""
        return float(self.provenance["seconds"]) if "seconds" in self.provenance else None

    @property
    def facts(self) -> dict[str, str]:
        """Builder, recipe, options, source, versions and calibration, as texts by `build.…` key."""
        made = self.provenance
        facts = {
            "use": made["use"],
            "recipe": made["recipe"],
            "options": json.dumps(made["options"], sort_keys=True),
            "source_sha256": hash_of(made["source"])[:SHOWN_DIGITS],
            "code": made["code"][:SHOWN_DIGITS],
            **made["versions"],
            **made["facts"],
        }
        if calibration := made["calibration"]:
            facts["calibration"] = f"{calibration['use']}, {calibration['samples']:,} samples"
            facts["calibration_digest"] = calibration["digest"][:SHOWN_DIGITS]
        return {f"build.{name}": str(value) for name, value in sorted(facts.items())}

    def require(self, engine: Mapping[str, Any]) -> None:
        """Raise RunError if the engine loaded weights other than those that were built."""
        loaded, built = str(engine.get("weights_sha256", "")), self.provenance["weights_sha256"]
        if loaded and not built.startswith(loaded):
            raise RunError(
                "build",
                f"{self.folder}: the engine loaded weights with SHA-256 {loaded}, but those that "
                f"were built have {built[: len(loaded)]}: remove {self.folder.parent} to build "
                "them again",
            )


@dataclass(frozen=True)
class CheckpointStore:
    folder: Path

    def find(self, key: str) -> Checkpoint | None:
        """Return a complete checkpoint; None if it is absent or damaged."""
        checkpoint = self.folder / key
        try:
            provenance = json.loads((checkpoint / "provenance.json").read_text("utf-8"))
            sizes: Mapping[str, int] = provenance["files"]
            whole = all(
                (checkpoint / "model" / n).stat().st_size == size for n, size in sizes.items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not whole or provenance.get("schema") != PROVENANCE_VERSION:
            return None
        return Checkpoint(folder=(checkpoint / "model").resolve(), provenance=provenance)

    @contextlib.contextmanager
    def lock_checkpoint(
        self, key: str, *, limit_s: float, waiting: Callable[[str], None]
    ) -> Iterator[None]:
        """Lock a checkpoint in the `with` block; call `waiting` while another process locks it."""
        with _writable(self.folder):
            if os.environ.get(SHARED):
                atomic.require_descriptors()
                self.folder.mkdir(parents=True, exist_ok=True)
            else:
                ignored_in_git(self.folder)
            lock = self._lock(key)
        deadline = time.monotonic() + limit_s
        while True:
            try:
                with _writable(self.folder):
                    lock.acquire(timeout=POLL_SECONDS, poll_interval=POLL_SECONDS / 4)
                break
            except Timeout:
                waiting("waiting for another process that builds the same checkpoint")
                if time.monotonic() > deadline:
                    raise RunError(
                        "build",
                        f"waited {limit_s:.0f} s for another process that builds the same "
                        f"checkpoint ({lock.lock_file}); end that process, or raise the ini "
                        "setting mlperf_lease_timeout",
                    ) from None
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def temporary_folder(self, key: str) -> Iterator[Path]:
        """Yield an empty folder for a build, then remove it unless `publish` has moved it."""
        with _writable(self.folder):
            self._sweep(current=key)
            temporary = self.folder / f".{key}.{secrets.token_hex(4)}.tmp"
            (temporary / "model").mkdir(parents=True)
        try:
            yield temporary / "model"
        finally:
            self._discard(temporary.name)

    def publish(self, key: str, model: Path, provenance: Mapping[str, Any]) -> Checkpoint:
        """Flush `model` to disk, move it to `key`, and write `provenance` with its file sizes."""
        files = sorted(path for path in model.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(model)): path.stat().st_size for path in files}
        whole = {"schema": PROVENANCE_VERSION, "key": key, **provenance, "files": sizes}
        text = json.dumps(whole, indent=1, sort_keys=True)
        checkpoint = self.folder / key
        with _writable(self.folder):
            mask = os.umask(0)
            os.umask(mask)
            for path in files:
                path.chmod(0o666 & ~mask)  # readable for others, as builds may be shared
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            atomic.write_text(model.parent / "provenance.json", text)
            for folder in (*filter(Path.is_dir, model.rglob("*")), model, model.parent):
                atomic.sync_folder(folder)
            # A folder exists here only if `find` reported it as damaged.
            self._discard(key)
            model.parent.rename(checkpoint)
            atomic.sync_folder(self.folder)
        return Checkpoint(folder=(checkpoint / "model").resolve(), provenance=json.loads(text))

    def _discard(self, name: str) -> None:
        with contextlib.suppress(OSError), atomic.opened_folder(self.folder, follow=True) as folder:
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def _lock(self, key: str) -> FileLock:
        with (
            contextlib.suppress(FileNotFoundError),
            atomic.opened_folder(self.folder, follow=True) as folder,
        ):  # filelock would truncate the target of a hard link
            os.close(atomic.open_regular(f"{key}.lock", folder))
        return FileLock(self.folder / f"{key}.lock", mode=0o666)

    def _sweep(self, *, current: str) -> None:
        for left in self.folder.glob(".*.tmp"):
            key = left.name.split(".")[1]
            if key == current:
                self._discard(left.name)
                continue
            with contextlib.suppress(Timeout, OSError), self._lock(key).acquire(timeout=0):
                self._discard(left.name)


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except Timeout:  # a subclass of OSError
        raise
    except NotImplementedError:  # filelock raises it without flock
        raise RunError(
            "build",
            f"{folder}: its file system has no locks, so two sessions could build at once; "
            f"set {SHARED} to a folder on another file system",
        ) from None
    except OSError as error:
        raise RunError(
            "build", f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from None
