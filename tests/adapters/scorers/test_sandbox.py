"""What a program can do in the sandbox, found by real programs that try; and that it is refused."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.code import _sandbox_filter as sandbox_filter
from pytest_mlperf.adapters.scorers.code import sandbox
from pytest_mlperf.adapters.scorers.code.sandbox import (
    MIB,
    USR,
    SandboxStep,
    StepResult,
    readable_python,
    run_isolated,
    visible_paths,
    why_not,
)
from pytest_mlperf.core.errors import EnvironmentFault

pytestmark = pytest.mark.process

PROJECT = Path(__file__).resolve().parents[3]


def refused(reason: str | None) -> bool:
    """Return whether this machine allows no sandbox; any other reason is a defect of ours."""
    return reason is not None and (
        platform.system() != "Linux"
        or (
            reason.endswith(("not permitted", "denied", "left on device", "not implemented"))
            and not reason.startswith("cannot start ")
        )
    )


@pytest.fixture
def isolation() -> None:
    """Skip where programs cannot be isolated: there nothing runs at all."""
    if refused(why_not()):
        pytest.skip(str(why_not()))
    assert why_not() is None


isolated = pytest.mark.usefixtures("isolation")


def step(*command: str, **limits: Any) -> SandboxStep:
    usual: dict[str, Any] = {
        "wall_s": 20,
        "cpu_s": 20,
        "memory_bytes": 512 * MIB,
        "address_bytes": 1024 * MIB,
        "processes": 16,
    }
    return SandboxStep(command=command, **{**usual, **limits})


def python(code: str, *, goes_on: frozenset[int] = frozenset({0}), **limits: Any) -> SandboxStep:
    program, _ = readable_python()
    return step(program, "-S", "-c", textwrap.dedent(code), goes_on=goes_on, **limits)


def run(*codes: str | SandboxStep, **options: Any) -> StepResult:
    """Run Python programs, one after another."""
    steps = [one if isinstance(one, SandboxStep) else python(one) for one in codes]
    _, readable = readable_python()
    readable |= options.pop("readable", {})
    return run_isolated(*steps, readable=readable, **{"files": {}, **options})


def printed_text(finished: StepResult) -> str:
    """Return the output of a program that succeeded."""
    assert finished.returncode == 0, finished.stderr.decode()
    return finished.stdout.decode().strip()


ATTEMPTS = """
import ctypes, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def ending(attempt):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        exec(attempt)
    except (OSError, MemoryError, ValueError):
        os._exit(3)
    finally:
        os._exit(0)
for attempt in {attempts!r}:
    if ending(attempt) != 3:
        print(attempt)
    for name in os.listdir():
        os.unlink(name)
"""


def not_refused(attempts: Iterable[str], **options: Any) -> list[str]:
    """Return the attempts that do not end with an error, each tried in a process of its own."""
    return printed_text(run(ATTEMPTS.format(attempts=list(attempts)), **options)).splitlines()


@isolated
def test_a_program_reads_its_files_writes_its_folder_and_ends() -> None:
    """Files arrive to the byte, in any alphabet; output and exit code come back."""
    code = """
    import os, sys
    assert sorted(os.listdir()) == ["b.bin", "ü.txt"]
    open("new", "w").write(open("ü.txt", encoding="utf-8").read())
    sys.stdout.write(open("new").read())
    sys.stderr.write(str(os.path.getsize("b.bin")))
    sys.exit(7)
    """

    finished = run(code, files={"ü.txt": "日本\n", "b.bin": bytes(range(256))})

    assert finished == StepResult(
        step=0, returncode=7, stdout="日本\n".encode(), stderr=b"256", truncated=False
    )
    assert not finished.timed_out


@isolated
def test_a_step_runs_only_after_an_exit_code_that_it_goes_on_from() -> None:
    """It finds the files of the one before it, and nothing that still runs."""
    leave = """
    import os, sys, time
    open("made", "w").write("by the first")
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(2)
    """
    find = """
    import os
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        print(open("made").read(), os.getpid() > 2)
    """

    on = run(python(leave, goes_on=frozenset({2})), find)
    off = run(leave, find)

    assert printed_text(on) == "by the first True"
    assert (on.step, off.step, off.returncode) == (1, 0, 2)


@isolated
def test_a_step_without_its_program_fails_and_a_missing_interpreter_is_no_failure() -> None:
    gone = run("pass", step("/box/never-made"))

    assert (gone.step, gone.returncode) == (1, 127)
    with pytest.raises(EnvironmentFault, match="cannot start /usr/bin/no-such-program: No such"):
        run(step("/usr/bin/no-such-program"))


@isolated
def test_a_file_has_a_name_without_folders() -> None:
    for name in ("", ".", "..", "a/b", "/etc/passwd", "../x"):
        with pytest.raises(ValueError, match="is not a file name; it must not contain a folder"):
            run("pass", files={name: ""})


@isolated
def test_a_program_is_ended_when_its_time_or_its_processor_time_is_up() -> None:
    endless = [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import os; os.kill(os.getpid(), 19)",
        "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]\n"
        "while True: time.sleep(1000)",
    ]

    assert [code for code in endless if not run(python(code, wall_s=0.3)).timed_out] == []
    finished = run(python("while True: pass", cpu_s=1))
    assert finished.returncode in {-signal.SIGKILL, -signal.SIGXCPU}


@isolated
def test_a_fork_bomb_goes_out() -> None:
    """No process can be started beyond the limit, in any session, and all end with the first."""
    for code in (
        "while True: os.fork()",
        "import threading\nwhile True: threading.Thread(target=signal.pause).start()",
        "while True:\n    if os.fork() == 0: os.setsid(); signal.pause()",
    ):
        assert run(python(f"import os, signal\n{code}", wall_s=1)).returncode != 0, code


@isolated
def test_as_many_processes_start_as_the_limit_says() -> None:
    """Those of other sandboxes and of the user do not count."""
    code = """
    import os, signal
    count = 1
    try:
        while True:
            if os.fork() == 0:
                signal.pause()
            count += 1
    except OSError:
        print(count)
    """

    for processes in (1, 4, 20):
        assert printed_text(run(python(code, processes=processes))) == str(processes)


@isolated
def test_memory_files_and_descriptors_are_limited() -> None:
    """Private and shared memory, file sizes and numbers; and a limit cannot be raised."""
    attempts = [
        "bytearray(600 << 20)",
        "__import__('mmap').mmap(-1, 1100 << 20)",
        "os.memfd_create('memory')",
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))",
        "[open(str(n), 'wb').write(bytes(1 << 20)) for n in range(20)]",
        "open('large', 'wb').truncate(1 << 40)",
        "[open(str(n), 'wb').close() for n in range(5000)]",
        "[os.dup(0) for _ in range(300)]",
    ]

    harmless = ["bytearray(100 << 20)", "os.dup(0)", "open('a', 'wb').write(bytes(1 << 20))"]

    assert not_refused([*attempts, *harmless], disk_bytes=8 * MIB) == harmless


@isolated
def test_output_is_cut_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read to its end, so that a program does not wait for a reader."""
    monkeypatch.setattr(sandbox, "OUTPUT_BYTES", 9)
    finished = run("import sys\nfor _ in range(64): sys.stdout.write('x' * 1048576)")

    assert finished == StepResult(
        step=0, returncode=0, stdout=b"xxxxxxxxx", stderr=b"", truncated=True
    )


@pytest.fixture
def public() -> Iterator[Path]:
    """A temporary folder that every user may read and write, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@isolated
def test_files_of_the_machine_cannot_be_read(public: Path) -> None:
    """Neither those in temporary folders nor the project; not through links or /proc."""
    secret = public / "secret"
    secret.write_text("for nobody")

    attempts = [
        f"open('{secret}')",
        f"os.lstat('{secret}')",
        f"os.listdir('{public}')",
        f"open('/box/../../..{secret}')",
        f"os.symlink('{secret}', 'link'), open('link')",
        f"os.link('{secret}', 'link')",
        f"os.chroot('/'), open('{secret}')",
        f"open('/proc/1/root{secret}')",
        "open('/proc/self/environ')",
        f"open('/old{secret}')",
        "os.listdir('/sys')",
        f"os.listdir({str(PROJECT)!r})",
        "open('/etc/passwd')",
        "open('/dev/mem')",
        "call('open_by_handle_at', -100, 0, 0)",
    ]
    assert not_refused(attempts) == []


@isolated
def test_nothing_can_be_written_but_the_own_folder(public: Path) -> None:
    folders = ["/", "/usr", "/usr/bin", "/lib", "/etc", "/dev", "/proc", str(public)]
    paths = [f"{folder}/made-in-the-sandbox" for folder in folders]
    attempts = [f"open('{path}', 'w')" for path in paths] + [
        f"os.mkdir('{path}')" for path in paths
    ]

    assert not_refused(attempts, readable={str(public): str(public)}) == []
    assert [path for path in paths if Path(path).exists()] == []


@isolated
def test_a_program_can_destroy_its_own_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "file").write_text("here")
    code = f"""
    import os, shutil
    os.symlink("/", "root")
    os.symlink("/usr", "file")
    for path in ("/box", "/usr/bin", "/etc", "{folder}", "root/usr/bin"):
        shutil.rmtree(path, ignore_errors=True)
    """

    run(code, readable={str(folder): str(folder)})

    assert (folder / "file").read_text() == "here"
    assert (
        printed_text(run("import os; print(os.listdir(), os.path.isdir('/usr/bin'))")) == "[] True"
    )


@isolated
def test_a_program_sees_the_system_and_nothing_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable and no descriptor; standard input is empty."""
    monkeypatch.setenv("MY_TOKEN", "for nobody")
    code = """
    import json, os, stat, sys
    assert stat.S_ISCHR(os.fstat(0).st_mode)
    streams = []
    for number in range(256):
        try:
            os.fstat(number)
            streams.append(number)
        except OSError:
            pass
    paths = ["/", "/etc", "/usr", "/usr/local"]
    folders = {path: os.listdir(path) for path in paths if os.path.isdir(path)}
    print(json.dumps([folders, list(os.environ), streams, sys.stdin.read()]))
    """
    _, readable = readable_python()
    system = {"bin", "box", "dev", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "tmp", "usr"}

    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        report = json.loads(printed_text(run(code, environment={"GIVEN": "1"})))

    folders, variables, streams, entered = report
    assert {*folders["/"]} <= system | {path.split("/")[1] for path in readable}
    assert {*folders["/etc"]} <= {"alternatives", "ld.so.cache"}
    places = {*USR, *readable}  # no settings: /usr/local/etc/npmrc may hold a token
    for folder in ("/usr", "/usr/local"):
        names = folders.get(folder, ())
        assert [
            n for n in names if not any(f"{p}/".startswith(f"{folder}/{n}/") for p in places)
        ] == []
    assert {*variables} - {"LC_CTYPE"} == {"GIVEN", "HOME", "LANG", "PATH", "TMPDIR"}
    assert (streams, entered) == ([0, 1, 2], "")


@isolated
def test_a_python_below_usr_local_works_wherever_it_is_there() -> None:
    program, _ = readable_python()
    prefix = Path(program).parents[1]
    there = f"/usr/local/python/bin/{Path(program).name}"

    finished = run_isolated(
        step(there, "-c", "import os; print('runs')"),
        files={},
        readable={"/usr/local/python": str(prefix)},
    )

    assert printed_text(finished) == "runs"
    assert visible_paths("/usr/local/bin/python3", "/usr/lib/jvm") == {}
    assert [*visible_paths("/usr/local/python", "/usr/local/binary")] == [
        *("/usr/local/python", "/usr/local/binary"),
    ]


@pytest.fixture
def addresses() -> Iterator[dict[str, object]]:
    """Places at which this process listens, and to which it can connect."""
    name = f"\0sandbox-{os.getpid()}-{os.urandom(4).hex()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(name)
        abstract.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
        with socket.create_connection(tcp.getsockname()):
            pass
        yield {"port": tcp.getsockname()[1], "name": repr(name)}


@isolated
def test_nothing_can_be_connected_to(addresses: dict[str, object]) -> None:
    """No port of this machine, no socket of Linux's own name space, no network."""
    attempts = [
        "socket.create_connection(('127.0.0.1', {port}), 2)",
        "socket.create_connection(('localhost', {port}), 2)",
        "socket.socket(socket.AF_INET6).connect(('::1', {port}))",
        "socket.socket(socket.AF_UNIX).connect({name})",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 53))",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)",
        "socket.socket(socket.AF_VSOCK)",
    ]

    assert not_refused(attempt.format(**addresses) for attempt in attempts) == []


@isolated
def test_no_privilege_is_had_or_gained() -> None:
    """What root may do is refused, and so are the calls by which programs become like root.

    Privileges of a program's file are not given either: PR_GET_NO_NEW_PRIVS is 1.
    """
    attempts = [
        "os.setuid(0)",
        "os.setgroups([0])",
        "os.chroot('/usr')",
        "os.mknod('device', 0o20600, os.makedev(1, 3))",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "os.setpriority(os.PRIO_PROCESS, 0, -5)",
        "socket.sethostname('other')",
        "call('unshare', 0x10000000)",
        "call('mount', b'none', b'/box', b'tmpfs', 0, 0)",
        "call('umount2', b'/usr', 2)",
        "call('ptrace', 16, 1, 0, 0)",
        "call('syscall', 425, 1, 0)",
        "call('syscall', 435, 0, 0)",
        "os.kill(1, signal.SIGKILL) or (_ for _ in ()).throw(OSError)",
    ]
    code = "import ctypes, os; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), os.getresuid())"

    assert not_refused(attempts) == []
    assert printed_text(run(code)) == "1 (1000, 1000, 1000)"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A pipe that a program holds as long as it lives: its end is seen here."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path.chmod(0o666)
    return path


HOLD = """
import os, signal
pipe = os.open("{fifo}", os.O_WRONLY)
os.write(pipe, b"started")
"""


@isolated
def test_nothing_outlives_the_program(fifo: Path) -> None:
    for leave in (
        "if os.fork() == 0: signal.pause()",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: signal.pause()",
        "[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\nif os.fork() == 0:\n"
        "    while True: signal.pause()",
    ):
        reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            code = HOLD.format(fifo=fifo) + leave + "\nos._exit(0)"
            assert run(code, readable={str(fifo): str(fifo)}).returncode == 0
            assert os.read(reading, 100) == b"started"
            assert os.read(reading, 100) == b""  # while one lived, this would be BlockingIOError
        finally:
            os.close(reading)


@isolated
def test_nothing_outlives_the_process_that_runs_it(fifo: Path) -> None:
    code = f"""
    from pytest_mlperf.adapters.scorers.code.sandbox import *
    program, readable = readable_python()
    run_isolated(
        SandboxStep(command=[program, "-S", "-c", {(HOLD.format(fifo=fifo) + "signal.pause()")!r}],
             wall_s=60, cpu_s=10, memory_bytes=2**29, address_bytes=2**30, processes=4),
        files={{}}, readable={{**readable, {str(fifo)!r}: {str(fifo)!r}}})
    """

    command = [sys.executable, "-c", textwrap.dedent(code)]
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with subprocess.Popen(command, cwd=PROJECT) as parent:
            assert select.select([reading], [], [], 60)[0], "the program did not start"
            assert os.read(reading, 7) == b"started"
            parent.kill()
        assert select.select([reading], [], [], 20)[0]  # the program is gone, or 20 s are over
        assert os.read(reading, 100) == b""
    finally:
        os.close(reading)


@isolated
def test_a_program_cannot_end_what_watches_it() -> None:
    for code in (
        "os.kill(os.getppid(), signal.SIGKILL)",
        "os.kill(1, signal.SIGTERM)",
        "os.killpg(0, signal.SIGKILL)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(-1, signal.SIGTERM)",
    ):
        finished = run(f"import os, signal\nprint('before', flush=True)\n{code}\nos._exit(3)")

        assert finished.stdout == b"before\n", code
        assert finished.returncode in {1, 3, -signal.SIGKILL}, code


ASK = """
from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.adapters.scorers.code.sandbox import SandboxStep, readable_python, run_isolated
from pytest_mlperf.adapters.scorers.code.sandbox import why_not
print(why_not())
program, readable = readable_python()
step = SandboxStep(command=[program, "-S", "-c", "print('run')"], wall_s=5, cpu_s=5,
                   memory_bytes=2**29, address_bytes=2**30, processes=4)
try:
    print(run_isolated(step, files={}, readable=readable).stdout)
except EnvironmentFault as error:
    print(error)
"""


def ask(*command: str, **user: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60, **user
    )


def test_where_no_namespace_can_be_had_nothing_is_run() -> None:
    """One sentence says why, what to do and what to leave out; there is no way on without."""
    unshare = shutil.which("unshare")
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = [str(unshare), "--user", "--map-root-user", "sh", "-c", script, "sh"]
    if unshare is None or ask(*command, "true").returncode:
        pytest.skip("user namespaces cannot be switched off for a process here")

    reply = ask(*command, sys.executable, "-c", ASK)

    reason, refusal = reply.stdout.splitlines()
    assert "cannot make a user namespace with its own network, processes and mounts: " in reason
    assert refusal.startswith("generated code cannot be isolated here: ")
    assert refusal.endswith(
        "; allow unprivileged user namespaces (Ubuntu: sudo sysctl -w "
        "kernel.apparmor_restrict_unprivileged_userns=0), run in a container that allows them, or "
        "score no programs (the scorer's run_generated_code = false)"
    )
    assert reply.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@isolated
def test_an_ordinary_user_has_the_same_sandbox() -> None:
    python3 = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    ordinary: dict[str, Any] = {"user": 12345, "group": 12345, "extra_groups": []}
    if (
        python3 is None
        or ask(python3, "-Bc", "import pytest_mlperf.core.errors", **ordinary).returncode
    ):
        pytest.skip("another user can read no Python, or not this project")

    assert ask(python3, "-Bc", ASK, **ordinary).stdout == "None\nb'run\\n'\n"


def verdict(machine: str, number: int, argument: int = 0, *, foreign: bool = False) -> int:
    """Walk through the filter as the kernel does; linux/filter.h."""
    code = sandbox_filter.program(machine)
    assert code is not None
    lines = list(struct.iter_unpack("=HBBI", code))
    architecture = 0x40000003 if foreign else sandbox_filter.ARCHITECTURES[machine]
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    position = accumulator = 0
    while True:
        operation, yes, no, value = lines[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            return int(value)
        else:
            true = {
                0x15: accumulator == value,
                0x45: bool(accumulator & value),
                0x35: accumulator >= value,
            }[operation]
            position += yes if true else no


ALLOW, KILL, EPERM, ENOSYS, NO_FAMILY = 0x7FFF0000, 0x80000000, 0x50001, 0x50026, 0x50061


@given(
    machine=st.sampled_from(["x86_64", "aarch64"]),
    number=st.integers(0, 500),
    argument=st.integers(0, 2**32 - 1) | st.integers(0, 50),
)
def test_the_filter_refuses_what_its_table_names_and_nothing_else(
    machine: str, number: int, argument: int
) -> None:
    column = ["x86_64", "aarch64"].index(machine)
    if number in {pair[column] for pair in sandbox_filter.DENIED_CALLS.values()}:
        expected = EPERM
    elif number == sandbox_filter.CLONE3:
        expected = ENOSYS
    elif number == sandbox_filter.CLONE[column]:
        expected = EPERM if argument & 0x7E020000 else ALLOW
    elif number == sandbox_filter.SOCKET[column]:
        expected = ALLOW if argument in {1, 2, 10} else NO_FAMILY
    else:
        expected = ALLOW

    assert verdict(machine, number, argument) == expected
    assert verdict(machine, number, argument, foreign=True) == KILL
    assert verdict(machine, number | 0x40000000, argument) == KILL


def test_the_filter_knows_two_machines() -> None:
    assert sandbox_filter.program("riscv64") is None
    machine = platform.machine()
    assert machine not in {"x86_64", "aarch64"} or sandbox_filter.program(machine)
