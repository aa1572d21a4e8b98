"""Write a file whole or not at all, and alone in its folder; those that somebody asked for.

The lock lies beside what is written, so that whoever shares the files shares the lock: processes
with temporary folders of their own, containers, other hosts where the file system passes locks on.
Lock and unfinished files are in a folder of their own, which is gone after a write. What a killed
writer left in it is ignored by git and removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError, text_of
from pytest_mlperf.core.foreign_text import visible


def write_text(path: Path, text: str) -> None:
    """Replace the file's content by `text` in UTF-8; see `write_bytes`.

    What UTF-8 cannot hold is written as an escape: nothing else in a text may be lost for it.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes, place: Path | None = None) -> None:
    """Replace the file's content; whoever reads it sees the old or the new, never a part.

    Missing folders are made. After an error the old file is as it was and nothing is left beside
    it; after the return the new one outlasts a power cut.

    Args:
        place: Where the unfinished file goes, on the same file system; None: beside the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside it, because a rename is atomic within one file system only.
    temporary = (place or path.parent) / f".{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let what was renamed into a folder outlast a power cut.

    Some network file systems refuse this; the new content is then in place all the same.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Keeping:
    """Writes files and remembers a line to say of each, for the terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def keep(self, title: str, write: Callable[[], object], line: str | None = None) -> bool:
        """Write something and return whether that worked; no failure keeps the next from it."""
        try:
            write()
        except MlperfError as error:
            self.lines.append(visible(f"ERROR {error}"))
        except Exception as error:
            self.lines.append(unforeseen(f"{title} could not be written", error))
        else:
            self.lines += [visible(line)] if line else []
            return True
        return False


def unforeseen(failure: str, error: Exception) -> str:
    """Return the line about an error that is no mistake of the user's."""
    shown = visible(f"{type(error).__name__}: {text_of(error)}")
    return f"ERROR {failure}: {shown}; please report this"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that a user asked for, whole or not at all; missing folders are made."""
    try:
        if isinstance(content, str):
            write_text(path, content)
        else:
            write_bytes(path, content)
    except OSError as error:
        raise MlperfError(f"{path} cannot be written: {error.strerror}") from None


PLACE = ".writing"
"""The folder, beside what is written."""

POLL_S = 0.02

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
"""What `flock` says where a file system has no locks, or none that can be had now."""

LOCK_HELP = "NFS: without nolock or local_lock, Lustre: with flock"
"""How network file systems are mounted so that locks hold between hosts."""

_IGNORE_ALL = b"*\n"


class BusyError(Exception):
    """Another process kept the folder for too long."""


class NoLocksError(Exception):
    """The file system offers no locks."""


@contextlib.contextmanager
def alone_in(folder: Path, *, timeout_s: float) -> Iterator[Path]:
    """Keep every other writer out of a folder; yield where unfinished files go.

    Missing folders are made. A rename from the place that is yielded into the folder is atomic.

    Raises:
        BusyError: Another process kept it for longer than `timeout_s`.
        NoLocksError: There are no locks on its file system.
    """
    place = folder / PLACE
    try:
        descriptor = _acquire(place, time.monotonic() + timeout_s)
    except NoLocksError:
        _remove(place)  # nobody else can be in there
        raise
    try:
        _clear(place)
        yield place
    finally:
        with contextlib.suppress(OSError):
            if _is_current(descriptor, place):  # else another's, since somebody removed ours
                _remove(place)
        os.close(descriptor)


def _lock_file(place: Path) -> Path:
    """Return the file to lock: it makes git ignore the folder, itself included."""
    return place / ".gitignore"


def _acquire(place: Path, deadline: float) -> int:
    while True:
        descriptor = _open(place)
        try:
            _lock(descriptor, deadline)
            if _is_current(descriptor, place):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever held it has removed it: lock the one that is there now


def _open(place: Path) -> int:
    """Open the file to lock; between any two steps another writer may end and remove it."""
    while True:
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            place.mkdir()
            # Who may write there may write here, and what is made here has the group of there.
            place.chmod(place.parent.stat().st_mode & 0o2777)
        if place.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link, where a folder is needed", str(place))
        with contextlib.suppress(FileNotFoundError):
            return os.open(_lock_file(place), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return _create(place)


def _create(place: Path) -> int:
    """Make the file to lock, with its content at once where the file system can do that."""
    mode = place.stat().st_mode & 0o666  # who may write here may lock
    with contextlib.suppress(OSError):
        return _link(place, mode)
    descriptor = os.open(_lock_file(place), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    os.fchmod(descriptor, mode)
    return descriptor


def _link(place: Path, mode: int) -> int:
    descriptor = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, _IGNORE_ALL)
        descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # with a folder's descriptor Python calls linkat(), which alone can do this
            os.link(str(descriptor), _lock_file(place), src_dir_fd=descriptors)
        finally:
            os.close(descriptors)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BusyError from None
            time.sleep(POLL_S)
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise NoLocksError(error.strerror) from error
            raise
        else:
            return


def _is_current(descriptor: int, place: Path) -> bool:
    """Whether what was locked is still the file that others lock; if so, let it say its line."""
    try:
        held, there = os.fstat(descriptor), _lock_file(place).lstat()
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ESTALE}:
            return False
        raise
    if held.st_nlink == 0 or not os.path.samestat(held, there):
        return False
    if held.st_size < len(_IGNORE_ALL):
        os.pwrite(descriptor, _IGNORE_ALL, 0)
    return True


def _remove(place: Path) -> None:
    """Remove the folder, the lock last: as long as anything else is there, git ignores it."""
    with contextlib.suppress(OSError):
        _clear(place)
        _lock_file(place).unlink()
        place.rmdir()


def _clear(place: Path) -> None:
    """Remove what is unfinished: whoever is alone here knows that nobody is writing it."""
    for left in place.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif left != _lock_file(place):
            left.unlink()


FOLDER_WAIT_S = 60.0
"""Longest wait for another process that writes a folder beside ours."""


def write_folder(folder: Path, content: Mapping[str, bytes | Path]) -> None:
    """Write files into a new folder, all of them or none, also when the writer is killed.

    What a killed writer left is hidden from git and removed by the next one.

    Args:
        content: By relative path bytes, or a file that is copied as it is.
    """
    if os.path.lexists(folder):
        raise MlperfError(f"{folder} exists; nothing was written: name a new folder")
    try:
        with alone_in(folder.parent, timeout_s=FOLDER_WAIT_S) as place:
            unfinished = place / "folder"
            unfinished.mkdir()
            for name, source in content.items():
                _write_into(unfinished / name, source)
            unfinished.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise MlperfError(f"{folder} cannot be written: {error.strerror}") from None
    except (BusyError, NoLocksError):
        raise MlperfError(
            f"{folder} cannot be written: its folder cannot be locked; name another, {LOCK_HELP}"
        ) from None


def _write_into(path: Path, source: bytes | Path) -> None:
    if isinstance(source, bytes):
        write_bytes(path, source)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
