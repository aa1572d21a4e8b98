"""Build a sandbox and run commands in it: a script, never imported.

`python -I -S sandbox_child.py STATUS PARENT < SETTINGS`: STATUS is a file descriptor, PARENT a
process id; sandbox.py makes SETTINGS. The script uses the standard library only. On a failure it
writes one sentence to STATUS and exits.

There are three levels of processes. This process enters the namespaces and waits. Its child is
process 1 of the sandbox; when that ends, the kernel kills all others. The child's children are the
commands.
"""

# Importing pathlib would take a third of the start-up time.
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211
from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

Settings = dict[str, Any]

INSIDE_USER = 1000
NOBODY_USER = 65534
"""Outside user of root's commands, since root is under no limit on processes."""

BOX = "/box"
OLD_ROOT_FOLDER = "/old"
MOUNT_POINT = "/tmp"  # noqa: S108 -- any folder that is everywhere
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- glibc knows no other place
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS_FILES = ("/etc/alternatives", "/etc/ld.so.cache")
DEVICE_FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWNET, NEWIPC, NEWUTS."""

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SYS_MOUNT_SETATTR, AT_RECURSIVE, MNT_DETACH = 442, 0x8000, 2

LIBC = ctypes.CDLL(None, use_errno=True)


class TroubleError(Exception):
    """Report which step of building the sandbox failed, and why."""


def main() -> NoReturn:
    """Build the sandbox, run the commands, report how they ended."""
    status, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status, False)
    with report_errors(status):
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with open(0, "rb", closefd=False) as stream:
            settings: Settings = json.load(stream)
        for name, number in (("SIGINT", signal.SIGINT), ("SIGPIPE", signal.SIGPIPE)):
            with step(f"reset {name}"):
                signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # the kernel kills it first if memory runs out
        has_two_users = enter_namespaces()
        build(settings)
        hold, alive = os.pipe()
        leader = os.fork()
        if leader == 0:
            os.close(alive)
            run_commands(settings, status, hold, has_two_users)
    os.waitpid(leader, 0)
    os._exit(0)


@contextlib.contextmanager
def report_errors(status_fd: int) -> Iterator[None]:
    """Write the text of an error in the `with` block to descriptor `status_fd`, and exit."""
    try:
        yield
    except BaseException as error:
        tell(status_fd, trouble=str(error) or type(error).__name__)
        os._exit(1)


@contextlib.contextmanager
def step(task: str) -> Iterator[None]:
    """Turn an OSError in the `with` block into a TroubleError, "cannot <task>: …"."""
    try:
        yield
    except OSError as error:
        raise TroubleError(f"cannot {task}: {error.strerror or error}") from error


def tell(status: int, **report: object) -> None:
    """Write a report to descriptor `status` as a line of JSON, in one atomic write."""
    os.write(status, json.dumps(report).encode() + b"\n")


def enter_namespaces() -> bool:
    """Enter new namespaces; return whether commands can run as a second user in them."""
    uid, gid = os.geteuid(), os.getegid()
    me = os.getpid()
    mapped, unshared = os.pipe()
    helper = os.fork() if uid == 0 else None
    if helper == 0:
        os.close(unshared)
        os._exit(not map_user_ids(me) if os.read(mapped, 1) else 1)
    if uid == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
    with step("make a user namespace with its own network, processes and mounts"):
        call(LIBC.unshare, NEW_NAMESPACES)
    os.write(unshared, b"!")
    os.close(unshared)
    if helper is not None and os.waitpid(helper, 0)[1] == 0:
        return True
    with step("map its user"):
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{INSIDE_USER} {uid} 1")
        write("/proc/self/gid_map", f"{INSIDE_USER} {gid} 1")
    return False


def map_user_ids(pid: int) -> bool:
    """Map a process's ids to root for mounting and nobody for commands; return False if refused."""
    try:
        for file in ("gid_map", "uid_map"):
            write(f"/proc/{pid}/{file}", f"0 0 1\n{INSIDE_USER} {NOBODY_USER} 1")
    except OSError:
        return False
    return True


def build(settings: Settings) -> None:
    """Mount the sandbox's root folder, the readable paths, and one writable folder."""
    with step("make its mounts private"):
        mount(None, "/", None, MS_REC | MS_PRIVATE)
    with step("mount a new root folder"):
        mount("tmpfs", MOUNT_POINT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
        os.mkdir(MOUNT_POINT + OLD_ROOT_FOLDER)
        call(LIBC.pivot_root, MOUNT_POINT.encode(), (MOUNT_POINT + OLD_ROOT_FOLDER).encode())
        os.chdir("/")
    for path in (*settings["system"], *SYSTEM_FOLDERS):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.islink(OLD_ROOT_FOLDER + path):
            os.symlink(os.readlink(OLD_ROOT_FOLDER + path), path)
        elif os.path.isdir(OLD_ROOT_FOLDER + path):
            bind_mount(path, path)
    for path in SETTINGS_FILES:
        if os.path.exists(OLD_ROOT_FOLDER + path):
            bind_mount(path, path)
    for path in DEVICE_FILES:
        bind_mount(path, path, device=True)
    for target, source in sorted(settings["readable"].items()):
        bind_mount(source, target)
    with step(f"mount {BOX}"):
        os.mkdir(BOX)
        size = f"size={settings['disk_bytes']},nr_inodes={settings['entries']}"
        owner = f"mode=0700,uid={INSIDE_USER},gid={INSIDE_USER}"
        mount("tmpfs", BOX, "tmpfs", MS_NOSUID | MS_NODEV, f"{size},{owner}")
        if not os.path.exists(MOUNT_POINT):  # an interpreter may be below it
            os.symlink(BOX, MOUNT_POINT)
        if not os.path.exists(SHARED_MEMORY):  # semaphores there count as files of the box
            os.symlink(BOX, SHARED_MEMORY)
    with step("hide the machine's files"):
        call(LIBC.umount2, OLD_ROOT_FOLDER.encode(), MNT_DETACH)
        os.rmdir(OLD_ROOT_FOLDER)
        restrict("/", READ_ONLY | NO_SUID | NO_DEVICES, 0)
        call(LIBC.sethostname, b"sandbox", 7)


def bind_mount(source: str, target: str, *, device: bool = False) -> None:
    """Bind-mount a path of the machine, and all mounts below it; read-only unless `device`."""
    with step(f"show {source} read-only"):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(OLD_ROOT_FOLDER + source):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(OLD_ROOT_FOLDER + source, target, None, MS_BIND | MS_REC)
        restrict(target, NO_SUID if device else READ_ONLY | NO_SUID | NO_DEVICES, AT_RECURSIVE)


def run_commands(
    settings: Settings, status_fd: int, parent_fd: int, has_two_users: bool
) -> NoReturn:
    """Run the commands as process 1 of the sandbox; stop after an unexpected exit code."""
    with report_errors(status_fd):
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        hang_up = select.poll()
        hang_up.register(parent_fd, 0)
        if hang_up.poll(0):
            os._exit(1)
        prctl(PR_SET_DUMPABLE, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.chdir(BOX)
        for name, text in settings["files"].items():
            with step(f"write {name}"):
                descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(base64.b64decode(text))
                os.chown(name, INSIDE_USER, INSIDE_USER)
        for number, command in enumerate(settings["steps"]):
            process = os.fork()
            if process == 0:
                execute(settings, command, status_fd, has_two_users)
            code = wait(process, command["wall_s"])
            tell(status_fd, step=number, returncode=code)
            if code not in command["goes_on"]:
                break
        tell(status_fd, done=True)
    os._exit(0)


def wait(process: int, wall_s: float) -> int | None:
    """Wait for a command, then kill its processes; return its exit code, None at the time limit."""
    deadline = time.monotonic() + wall_s
    code = None
    while True:
        ended, ending = os.waitpid(-1, os.WNOHANG)
        if ended == process:
            code = os.waitstatus_to_exitcode(ending)
            break
        if ended:
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            break
        signal.sigtimedwait({signal.SIGCHLD}, left)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        while True:
            os.kill(-1, signal.SIGKILL)
            os.waitpid(-1, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return code


def execute(
    settings: Settings, command: dict[str, Any], status: int, has_two_users: bool
) -> NoReturn:
    """Drop privileges, set limits, and execute a command; write errors to descriptor `status`."""
    with report_errors(status), step(f"start {command['command'][0]}"):
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        for name, value in command["limits"].items():
            # Without a second user the two processes of the sandbox count too.
            limit(name, value + 2 * (name == "RLIMIT_NPROC" and not has_two_users))
        if has_two_users:
            os.setresgid(INSIDE_USER, INSIDE_USER, INSIDE_USER)
            os.setresuid(INSIDE_USER, INSIDE_USER, INSIDE_USER)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        install_filter(base64.b64decode(settings["filter"]))
        words = command["command"]
        try:
            os.execve(words[0], words, settings["environment"])  # noqa: S606
        except OSError:
            if words[0].startswith(f"{BOX}/"):  # an earlier step did not make it
                os._exit(127)
            raise


def limit(name: str, value: int) -> None:
    """Set a resource limit, but never above the current hard limit."""
    number = getattr(resource, name)
    most = resource.getrlimit(number)[1]
    least = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(number, (least, least))


def install_filter(bpf_code: bytes) -> None:
    """Install a seccomp filter, BPF code that denies system calls to this process from now on."""
    text = ctypes.create_string_buffer(bpf_code, len(bpf_code))

    class Program(ctypes.Structure):
        _fields_ = (("lines", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    whole = Program(len(bpf_code) // 8, ctypes.cast(text, ctypes.c_void_p))
    call(LIBC.prctl, PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(whole))


def restrict(path: str, attributes: int, flags: int) -> None:
    """Add mount attributes to a path; AT_RECURSIVE includes mounts below it (Linux 5.12)."""
    attr = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    number, size = ctypes.c_long(SYS_MOUNT_SETATTR), ctypes.c_size_t(ctypes.sizeof(attr))
    call(LIBC.syscall, number, -100, path.encode(), flags, ctypes.byref(attr), size)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    call(LIBC.mount, *texts, ctypes.c_ulong(flags), options.encode() or None)


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument."""
    call(LIBC.prctl, option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def call(function: Any, *arguments: Any) -> None:
    """Call a function of the C library; raise OSError if it returns -1."""
    if function(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write(path: str, text: str) -> None:
    """Write a file of /proc in one call, as the kernel requires."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
