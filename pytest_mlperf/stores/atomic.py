"""Write files atomically, and lock the folder that they are written to.

The lock is a file next to the written ones, so that containers, hosts with a shared file system,
and processes with separate temporary folders use the same lock. The lock and unfinished files are
in a subfolder that is removed after each write. Git ignores the leftovers of a killed writer, and
the next writer removes them.
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
    """Replace the file's content by `text` in UTF-8, see `write_bytes`.

    Characters that UTF-8 cannot encode are written as escapes, so that the text is not lost.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


@dataclass(frozen=True, slots=True)
class LockedFolder:
    """Hold the descriptors of a locked folder, as its path may be replaced by a link.

    Attributes:
        path: Folder of unfinished files, for messages.
        folder: Descriptor of the locked folder.
        unfinished: Descriptor of the folder of unfinished files.
    """

    path: Path
    folder: int
    unfinished: int


def write_bytes(path: Path, content: bytes, locked: LockedFolder | None = None) -> None:
    """Replace the file's content atomically: readers see the old or the new content.

    Missing folders are created. On error the old file stays and nothing is left next to it; on
    return the new content is on disk. A killed writer leaves an unfinished file only if the file
    system lacks unnamed files or an older file existed; the next write removes it.

    Args:
        locked: Locked folder of the file; None writes without a lock.
    """
    with explain_full_disk(path), contextlib.ExitStack() as stack:
        if locked is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _has_descriptors():
                _replace(path, content)
                return
            folder = stack.enter_context(opened_folder(path.parent, follow=True))
            _remove_stale(folder)
            locked = LockedFolder(path.parent, folder, folder)
        if not _write(path.name, content, locked, unnamed=True):
            _write(path.name, content, locked, unnamed=False)
        with contextlib.suppress(OSError):  # see sync_folder
            os.fsync(locked.folder)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file by its path, on platforms where Python cannot open folders."""
    temporary = path.with_name(_temporary_name())
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(name: str, content: bytes, locked: LockedFolder, *, unnamed: bool) -> bool:
    """Write a file, if `unnamed` by O_TMPFILE; return False if the file system lacks that."""
    temporary = _temporary_name()
    try:
        descriptor = _create(temporary, locked.unfinished, 0o666, unnamed=unnamed)
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
                    _link(descriptor, name, locked.folder)
                    return True
                _link(descriptor, temporary, locked.unfinished)
            except OSError:
                return False
        os.replace(temporary, name, src_dir_fd=locked.unfinished, dst_dir_fd=locked.folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=locked.unfinished)
        raise
    finally:
        os.close(descriptor)
    return True


def _create(name: str, folder: int, mode: int, *, unnamed: bool) -> int:
    """Create and lock a file; return its descriptor; `unnamed` (O_TMPFILE): it has no name yet."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if unnamed:
        descriptor = os.open(".", flags | os.O_TMPFILE, mode, dir_fd=folder)
    else:
        descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
    with contextlib.suppress(OSError):
        lock(descriptor)
    return descriptor


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file by `flock` without waiting; OSError if another process has locked it."""
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOSYS, "this platform has no file locks (flock)") from None
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _link(descriptor: int, name: str, folder: int) -> None:
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder's descriptor Python calls linkat(), which this needs
        os.link(str(descriptor), name, src_dir_fd=descriptors, dst_dir_fd=folder)
    finally:
        os.close(descriptors)


def _host_digest() -> str:
    return hashlib.sha256(os.fsencode(socket.gethostname())).hexdigest()[:8]


def _temporary_name() -> str:
    return f".{_host_digest()}{secrets.token_hex(4)}.tmp"


_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


def _remove_stale(folder: int) -> None:
    """Remove unfinished files of this user and host that no running writer has locked."""
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
    """Yield a descriptor of a folder, relative to folder `inside`; links only with `follow`."""
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
    """Open a file in a shared folder for writing, no link or pipe; return its descriptor."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    unfit = "it is a pipe, a device or a hard link; a lock must be a plain file"
    raise OSError(errno.EPERM, unfit, name)


def _has_descriptors() -> bool:
    uses = {os.open, os.mkdir, os.unlink, os.rmdir, os.rename}
    return hasattr(os, "O_DIRECTORY") and uses <= os.supports_dir_fd


def require_descriptors() -> None:
    """Raise OSError if Python cannot open files relative to a folder here."""
    if not _has_descriptors():
        raise OSError(errno.ENOTSUP, "this platform has no dir_fd, which shared folders need")


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Add the file system and its free space to the message of a disk-full error."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(error.errno, f"{error.strerror} ({disk_of(path)})", str(path)) from None


def disk_of(path: Path) -> str:
    """Return the mount point of a path and its free space, as text."""
    mount_point = Path(os.path.realpath(path))
    while not mount_point.exists():
        mount_point = mount_point.parent
    free = shutil.disk_usage(mount_point).free
    while not mount_point.is_mount():
        mount_point = mount_point.parent
    return f"file system {mount_point}: {free / 2**20:,.1f} MiB free"


def sync_folder(folder: Path) -> None:
    """Flush renames in a folder to disk, unless a network file system refuses this."""
    with contextlib.suppress(OSError), opened_folder(folder, follow=True) as descriptor:
        os.fsync(descriptor)


class WriteMessages:
    """Run functions that write files; collect a terminal message on each in `lines`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def try_write(self, title: str, write: Callable[[], object], line: str | None = None) -> bool:
        """Call `write`; add `line` or an error about `title` to the messages; return success."""
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
    """Return a terminal line: ERROR, the text `failure`, the unexpected error, and what to do."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return visible(f"ERROR {failure}: {error.filename}: {error.strerror}; free some space")
    reason = visible(f"{type(error).__name__}: {text_of(error)}")
    return f"ERROR {failure}: {reason}; please report this"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically to a path that the user gave; raise MlperfError if that fails."""
    try:
        if isinstance(content, str):
            write_text(path, content)
        else:
            write_bytes(path, content)
    except OSError as error:
        raise MlperfError(f"{path} cannot be written: {error.strerror}") from None


PLACE = ".writing"
"""Name of the folder of unfinished files."""

POLL_SECONDS = 0.02

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
"""Errors of `flock` if the file system has no locks, or none are available."""

LOCK_HELP = "NFS: without nolock or local_lock, Lustre: with flock"
"""Mount options of network file systems under which locks hold between hosts."""

_IGNORE_ALL = b"*\n"


class BusyError(Exception):
    """Report that another process held the lock for too long."""


class NoLocksError(Exception):
    """Report that the file system has no locks."""


LOCK = ".gitignore"
"""File to lock: it makes git ignore its folder."""


@contextlib.contextmanager
def locked_folder(folder: Path, *, timeout_s: float) -> Iterator[LockedFolder]:
    """Lock a folder, created if missing; yield it with a subfolder for unfinished files.

    Raises:
        BusyError: Another process held the lock for longer than `timeout_s`.
        NoLocksError: The file system has no locks.
    """
    require_descriptors()
    with contextlib.ExitStack() as stack:
        with explain_full_disk(folder):
            locked, descriptor = _acquire(folder, time.monotonic() + timeout_s, stack)
        try:
            _clear(locked)
            yield locked
        finally:
            with contextlib.suppress(OSError):
                if _is_current(
                    descriptor, locked
                ):  # else ours was removed, and this one is another's
                    _remove(locked)


def _acquire(
    folder: Path, deadline: float, stack: contextlib.ExitStack
) -> tuple[LockedFolder, int]:
    while True:
        with contextlib.ExitStack() as attempt:
            locked, descriptor = _open(folder, attempt)
            try:
                _lock(descriptor, deadline)
                # If not, its holder removed it: lock the new one.
                if _is_current(descriptor, locked):
                    stack.push(attempt.pop_all())
                    return locked, descriptor
            except (NoLocksError, OSError):
                _remove(locked)  # no other writer is in it, or the disk is full
                raise


def _open(folder: Path, stack: contextlib.ExitStack) -> tuple[LockedFolder, int]:
    """Create and open a subfolder for locks; return (subfolder, descriptor of its lock file)."""
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
                if made:  # same access and group as the outer folder
                    os.fchmod(inner, os.fstat(outer).st_mode & 0o2777)
                descriptor = _open_lock(inner)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                raise NotADirectoryError(
                    errno.ENOTDIR, "it is a link; it must be a folder", str(folder / PLACE)
                ) from None
            except BaseException:
                with contextlib.suppress(OSError):  # leave nothing behind on a full disk
                    os.rmdir(PLACE, dir_fd=outer)
                raise
            attempt.callback(os.close, descriptor)
            stack.push(attempt.pop_all())
            return LockedFolder(folder / PLACE, outer, inner), descriptor


def _open_lock(folder: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        return open_regular(LOCK, folder)
    mode = os.fstat(folder).st_mode & 0o666  # all users who may write to the folder may lock
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


def _is_current(descriptor: int, locked: LockedFolder) -> bool:
    """Return whether an open lock (.gitignore) is still in its folder; write its text if empty."""
    try:
        with opened_folder(PLACE, locked.folder) as folder:
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


def _remove(locked: LockedFolder) -> None:
    """Remove the folder of unfinished files, the lock file last: until then git ignores them."""
    with contextlib.suppress(OSError):
        _clear(locked)
        if names_in(locked.unfinished) == [LOCK]:
            os.unlink(LOCK, dir_fd=locked.unfinished)
            os.rmdir(PLACE, dir_fd=locked.folder)


def _clear(locked: LockedFolder) -> None:
    """Remove unfinished files, whose writers must have ended; keep files with other names."""
    for name in filter(_TEMPORARY.fullmatch, names_in(locked.unfinished)):
        about = os.stat(name, dir_fd=locked.unfinished, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            shutil.rmtree(name, dir_fd=locked.unfinished)
        else:
            os.unlink(name, dir_fd=locked.unfinished)


FOLDER_WAIT_S = 60.0
"""Longest wait for another process that writes to the same parent folder."""


def write_folder(folder: Path, content: Mapping[str, bytes | Path]) -> None:
    """Write files into a new folder atomically, even if the writer is killed.

    Git ignores the leftovers of a killed writer, and the next writer removes them.

    Args:
        content: Bytes, or a file to copy, by relative path.
    """
    if os.path.lexists(folder):
        raise MlperfError(f"{folder} exists; nothing was written: name a new folder")
    try:
        with (
            locked_folder(folder.parent, timeout_s=FOLDER_WAIT_S) as locked,
            explain_full_disk(folder),
        ):
            temporary = _temporary_name()
            os.mkdir(temporary, dir_fd=locked.unfinished)
            with opened_folder(temporary, locked.unfinished) as inside:
                for name, source in content.items():
                    _write_into(inside, name, source)
            os.rename(
                temporary, folder.name, src_dir_fd=locked.unfinished, dst_dir_fd=locked.folder
            )
        sync_folder(folder.parent)
    except OSError as error:
        raise MlperfError(f"{folder} cannot be written: {error.strerror}") from None
    except BusyError:
        raise MlperfError(
            f"{folder} cannot be written: another process writes to {folder.parent}; wait for it, "
            "or name another folder"
        ) from None
    except NoLocksError:
        raise MlperfError(
            f"{folder} cannot be written: its file system has no locks; name another folder, or "
            f"mount it with locks ({LOCK_HELP})"
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
