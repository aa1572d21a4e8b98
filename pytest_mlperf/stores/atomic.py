"""Write a file whole or not at all, and alone in its folder; those that somebody asked for.

The lock lies beside what is written, so that whoever shares the files shares the lock: processes
with temporary folders of their own, containers, other hosts where the file system passes locks on.
Lock and unfinished files are in a folder of their own, which is gone after a write. What a killed
writer left in it is ignored by git and removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError, text_of
from pytest_mlperf.core.untrusted_text import visible


def write_text(path: Path, text: str) -> None:
    """Replace the file's content by `text` in UTF-8; see `write_bytes`.

    What UTF-8 cannot hold is written as an escape: nothing else in a text may be lost for it.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


@dataclass(frozen=True, slots=True)
class LockedFolder:
    """A locked folder, held by descriptors: another user may swap its names for links.

    Attributes:
        path: Where unfinished files go, for messages.
        folder: Descriptor of the locked folder.
        unfinished: Descriptor of the folder of unfinished files.
    """

    path: Path
    folder: int
    unfinished: int


def write_bytes(path: Path, content: bytes, place: LockedFolder | None = None) -> None:
    """Replace the file's content; whoever reads it sees the old or the new, never a part.

    Missing folders are made. After an error the old file is as it was and nothing is left beside
    it; after the return the new one outlasts a power cut. A killed writer leaves nothing where the
    file system has unnamed files and there was no older file; else the next write removes it.

    Args:
        place: The locked folder of the file; None: no lock is held.
    """
    with naming_disk(path), contextlib.ExitStack() as stack:
        if place is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _has_descriptors():
                _replace(path, content)
                return
            folder = stack.enter_context(opened_folder(path.parent, follow=True))
            _remove_stale(folder)
            place = LockedFolder(path.parent, folder, folder)
        if not _write(path.name, content, place, unnamed=True):
            _write(path.name, content, place, unnamed=False)
        with contextlib.suppress(OSError):  # as sync_folder
            os.fsync(place.folder)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file by its name alone, where Python cannot open folders."""
    temporary = path.with_name(_temporary_name())
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(name: str, content: bytes, place: LockedFolder, *, unnamed: bool) -> bool:
    """Write a file that gets its name once it is whole; False if it cannot be unnamed before."""
    temporary = _temporary_name()
    try:
        descriptor = _create(temporary, place.unfinished, 0o666, unnamed=unnamed)
    except (OSError, AttributeError):
        if unnamed:
            return False
        raise
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
        if unnamed:
            try:
                with contextlib.suppress(FileExistsError):
                    _link(descriptor, name, place.folder)
                    return True
                _link(descriptor, temporary, place.unfinished)
            except OSError:
                return False
        os.replace(temporary, name, src_dir_fd=place.unfinished, dst_dir_fd=place.folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=place.unfinished)
        raise
    finally:
        os.close(descriptor)
    return True


def _create(name: str, folder: int, mode: int, *, unnamed: bool) -> int:
    """Create a file in a folder, locked as long as it is open; an unnamed one is linked later."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if unnamed:
        descriptor = os.open(".", flags | os.O_TMPFILE, mode, dir_fd=folder)
    else:
        descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
    with contextlib.suppress(OSError):
        lock(descriptor)
    return descriptor


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file at once; the error of `flock` where it is not to be had, or not here."""
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOSYS, "this platform has no flock") from None
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _link(descriptor: int, name: str, folder: int) -> None:
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder's descriptor Python calls linkat(), which alone can do this
        os.link(str(descriptor), name, src_dir_fd=descriptors, dst_dir_fd=folder)
    finally:
        os.close(descriptors)


def _host_digest() -> str:
    return hashlib.sha256(os.fsencode(socket.gethostname())).hexdigest()[:8]


def _temporary_name() -> str:
    return f".{_host_digest()}{secrets.token_hex(4)}.tmp"


_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


def _remove_stale(folder: int) -> None:
    """Remove this user's unfinished files whose writer on this host is dead: they are unlocked."""
    names = filter(_TEMPORARY.fullmatch, names_in(folder))
    for name in (name for name in names if name.startswith(f".{_host_digest()}")):
        with contextlib.suppress(OSError):
            descriptor = open_regular(name, folder)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    lock(descriptor)
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def opened_folder(
    path: str | Path, inside: int | None = None, *, follow: bool = False
) -> Iterator[int]:
    """Yield a folder's descriptor; its path is relative to `inside`, an open folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(folder: int) -> list[str]:
    """Return the names in an open folder."""
    return os.listdir(folder)


def open_regular(name: str, folder: int) -> int:
    """Open a file of a shared folder for writing; refuse links, also hard ones, and pipes."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "a pipe, a device or a hard link, where a lock is needed", name)


def _has_descriptors() -> bool:
    uses = {os.open, os.mkdir, os.unlink, os.rmdir, os.rename}
    return hasattr(os, "O_DIRECTORY") and uses <= os.supports_dir_fd


def require_descriptors() -> None:
    """Refuse a shared folder where Python cannot open files relative to a folder."""
    if not _has_descriptors():
        raise OSError(errno.ENOTSUP, "this platform has no dir_fd, which shared folders need")


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def naming_disk(path: Path) -> Iterator[None]:
    """Add to the error of a full disk which file system that is, and what is free."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(error.errno, f"{error.strerror} ({disk_of(path)})", str(path)) from None


def disk_of(path: Path) -> str:
    """Return the mount point of a path and its free space."""
    place = Path(os.path.realpath(path))
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    while not place.is_mount():
        place = place.parent
    return f"file system {place}: {free / 2**20:,.1f} MiB free"


def sync_folder(folder: Path) -> None:
    """Let what was renamed into a folder outlast a power cut.

    Some network file systems refuse this; the new content is then in place all the same.
    """
    with contextlib.suppress(OSError), opened_folder(folder, follow=True) as descriptor:
        os.fsync(descriptor)


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
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return visible(f"ERROR {failure}: {error.filename}: {error.strerror}; free some space")
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

POLL_SECONDS = 0.02

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
"""What `flock` says where a file system has no locks, or none that can be had now."""

LOCK_HELP = "NFS: without nolock or local_lock, Lustre: with flock"
"""How network file systems are mounted so that locks hold between hosts."""

_IGNORE_ALL = b"*\n"


class BusyError(Exception):
    """Another process kept the folder for too long."""


class NoLocksError(Exception):
    """The file system offers no locks."""


LOCK = ".gitignore"
"""The file to lock: it makes git ignore the folder, itself included."""


@contextlib.contextmanager
def alone_in(folder: Path, *, timeout_s: float) -> Iterator[LockedFolder]:
    """Keep every other writer out of a folder; yield where unfinished files go.

    Missing folders are made. A rename from the place that is yielded into the folder is atomic.

    Raises:
        BusyError: Another process kept it for longer than `timeout_s`.
        NoLocksError: There are no locks on its file system.
    """
    require_descriptors()
    with contextlib.ExitStack() as stack:
        with naming_disk(folder):
            place, descriptor = _acquire(folder, time.monotonic() + timeout_s, stack)
        try:
            _clear(place)
            yield place
        finally:
            with contextlib.suppress(OSError):
                if _is_current(descriptor, place):  # else another's, since somebody removed ours
                    _remove(place)


def _acquire(
    folder: Path, deadline: float, stack: contextlib.ExitStack
) -> tuple[LockedFolder, int]:
    while True:
        with contextlib.ExitStack() as attempt:
            place, descriptor = _open(folder, attempt)
            try:
                _lock(descriptor, deadline)
                # If not, its holder removed it: lock the one that is there now.
                if _is_current(descriptor, place):
                    stack.push(attempt.pop_all())
                    return place, descriptor
            except (NoLocksError, OSError):
                _remove(place)  # nobody else can be in there, or the disk is full
                raise


def _open(folder: Path, stack: contextlib.ExitStack) -> tuple[LockedFolder, int]:
    """Open the file to lock; between any two steps another writer may end and remove it."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as attempt:
            outer = attempt.enter_context(opened_folder(folder, follow=True))
            made = False
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.mkdir(PLACE, dir_fd=outer)
                made = True
            try:
                inner = attempt.enter_context(opened_folder(PLACE, outer))
                if made:  # who may write there may write here; files here have the group of there
                    os.fchmod(inner, os.fstat(outer).st_mode & 0o2777)
                descriptor = _open_lock(inner)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                raise NotADirectoryError(
                    errno.ENOTDIR, "a link, where a folder is needed", str(folder / PLACE)
                ) from None
            except BaseException:
                with contextlib.suppress(OSError):  # nothing is left where the disk is full
                    os.rmdir(PLACE, dir_fd=outer)
                raise
            attempt.callback(os.close, descriptor)
            stack.push(attempt.pop_all())
            return LockedFolder(folder / PLACE, outer, inner), descriptor


def _open_lock(folder: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        return open_regular(LOCK, folder)
    mode = os.fstat(folder).st_mode & 0o666  # who may write here may lock
    with contextlib.suppress(OSError, AttributeError):
        descriptor = _create("", folder, mode, unnamed=True)
        try:
            os.fchmod(descriptor, mode)
            os.write(descriptor, _IGNORE_ALL)
            _link(descriptor, LOCK, folder)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    with contextlib.suppress(FileExistsError):
        descriptor = _create(LOCK, folder, mode, unnamed=False)
        os.fchmod(descriptor, mode)
        return descriptor
    return open_regular(LOCK, folder)


def _lock(descriptor: int, deadline: float) -> None:
    while True:
        try:
            lock(descriptor)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BusyError from None
            time.sleep(POLL_SECONDS)
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise NoLocksError(error.strerror) from error
            raise
        else:
            return


def _is_current(descriptor: int, place: LockedFolder) -> bool:
    """Whether what was locked is still the file that others lock; if so, let it say its line."""
    try:
        with opened_folder(PLACE, place.folder) as folder:
            held, there = os.fstat(descriptor), os.stat(LOCK, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP}:
            return False
        raise
    if held.st_nlink == 0 or not os.path.samestat(held, there):
        return False
    if held.st_size < len(_IGNORE_ALL):
        os.pwrite(descriptor, _IGNORE_ALL, 0)
    return True


def _remove(place: LockedFolder) -> None:
    """Remove the folder, the lock last: as long as anything else is there, git ignores it."""
    with contextlib.suppress(OSError):
        _clear(place)
        if names_in(place.unfinished) == [LOCK]:
            os.unlink(LOCK, dir_fd=place.unfinished)
            os.rmdir(PLACE, dir_fd=place.folder)


def _clear(place: LockedFolder) -> None:
    """Remove what is unfinished: whoever is alone here knows that nobody is writing it.

    Other names are never removed: another user may have moved a folder here.
    """
    for name in filter(_TEMPORARY.fullmatch, names_in(place.unfinished)):
        about = os.stat(name, dir_fd=place.unfinished, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            shutil.rmtree(name, dir_fd=place.unfinished)
        else:
            os.unlink(name, dir_fd=place.unfinished)


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
        with alone_in(folder.parent, timeout_s=FOLDER_WAIT_S) as place, naming_disk(folder):
            temporary = _temporary_name()
            os.mkdir(temporary, dir_fd=place.unfinished)
            with opened_folder(temporary, place.unfinished) as inside:
                for name, source in content.items():
                    _write_into(inside, name, source)
            os.rename(temporary, folder.name, src_dir_fd=place.unfinished, dst_dir_fd=place.folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise MlperfError(f"{folder} cannot be written: {error.strerror}") from None
    except (BusyError, NoLocksError):
        raise MlperfError(
            f"{folder} cannot be written: its folder cannot be locked; name another, {LOCK_HELP}"
        ) from None


def _write_into(folder: int, name: str, source: bytes | Path) -> None:
    first, _, rest = name.partition("/")
    if rest:
        with contextlib.suppress(FileExistsError):
            os.mkdir(first, dir_fd=folder)
        with opened_folder(first, folder) as inside:
            _write_into(inside, rest, source)
        return
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(os.fdopen(_create(name, folder, 0o666, unnamed=False), "wb"))
        if isinstance(source, bytes):
            file.write(source)
            file.flush()
            os.fsync(file.fileno())
        else:
            shutil.copyfileobj(stack.enter_context(source.open("rb")), file)
