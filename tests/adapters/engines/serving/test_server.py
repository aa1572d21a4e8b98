"""Servers that are started for a run: healthy, or one clear error, and never left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mlperf.adapters.engines import serving
from pytest_mlperf.adapters.engines.serving import Server, ask, fill_in, find_program
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.refusals import unrefused

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("scripted_servers.py")
GONE_S = 20.0


def server_of(command: Sequence[str], **changes: Any) -> Server:
    """Return a server that is not started yet."""
    arguments: dict[str, Any] = {"model": None, "health": "/", "start_timeout_s": 20.0, **changes}
    return Server(command, engine="some", **{"environment": {}, **arguments})


def scripted(
    behaviour: str, folder: Path | str = "", *, limit_s: float = 20.0, health: str = "/health"
) -> Server:
    """Return one of the scripted servers."""
    command = [sys.executable, str(SCRIPT), behaviour, "{port}", str(folder)]
    return server_of(command, health=health, start_timeout_s=limit_s)


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Check after each test that no process of it is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # logs of servers go there
    children_at_start = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in children_at_start]
    assert left == []


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def left_of(pids: list[int]) -> list[int]:
    """Wait, and return those that do not end."""
    deadline = time.monotonic() + GONE_S
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def error_of(server: Server) -> str:
    """Return the error that starting a server ends with; nothing of it is left."""
    with pytest.raises(RunError) as caught, server:
        pytest.fail("it is healthy")
    assert caught.value.layer == "engine"
    assert caught.value.log == str(server.log)
    return str(caught.value)


def test_a_server_is_healthy_inside_and_gone_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it takes no notice of SIGTERM; after an error of its user its log is kept."""
    monkeypatch.setattr(serving, "KILL_GRACE_SECONDS", 0.2)
    with scripted("loading") as server, scripted("stubborn") as other:
        assert server.url != other.url
        server.check()
        assert server.url == f"http://127.0.0.1:{port_of(server)}"
        assert ask(port_of(server), "/health", 5.0) == "200"
        assert "listening on" in server.log.read_text("utf-8")

    assert not server.log.exists()
    for stopped in (server, other):
        with socket.create_server(("127.0.0.1", port_of(stopped))):
            pass
    with pytest.raises(RunError, match="the server was stopped"):
        server.check()
    with pytest.raises(ZeroDivisionError), scripted("healthy") as server:
        1 / 0  # noqa: B018
    assert "listening on" in server.log.read_text("utf-8")


def test_a_server_of_another_commit_has_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both a module and a relative path are those of the checkout, not of the working folder."""
    tree, here = tmp_path / "tree", tmp_path / "here"
    for folder in (tree, here):
        (folder / "bin").mkdir(parents=True)
        future = "from __future__ import annotations\n"
        noted = f"{future}open(r'{folder}/ran', 'w').close()\n"
        text = f"#!{sys.executable}\n{SCRIPT.read_text('utf-8').replace(future, noted)}"
        for name in ("served.py", "bin/served"):
            (folder / name).write_text(text, "utf-8")
            (folder / name).chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTEST_MLPERF_TREE", str(tree))
    monkeypatch.setenv("PYTHONPATH", str(tree))
    for program in ([sys.executable, "-m", "served"], ["bin/served"]):
        with server_of([*program, "healthy", "{port}", ""], health="/health"):
            assert (tree / "ran").exists()
        (tree / "ran").unlink()
    assert not (here / "ran").exists()


SHORT_LIVED = """
import os, subprocess
from pytest_mlperf.adapters.engines.serving import _launch

class Slow(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

subprocess.Popen = Slow
_launch.main(1.0, os.getppid(), ["sh", "-c", "exit 3"])
"""


def test_the_end_of_a_program_is_reported_even_if_it_ended_at_once() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", SHORT_LIVED],
        input=b"",
        capture_output=True,
        timeout=GONE_S,
        check=True,
    ).stdout

    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines[1] == {"ended": 3}


def test_a_server_that_ends_at_once_is_one_clear_error() -> None:
    early, memory = (
        "before GET /health answered 200; ",
        r"the machine ran out of memory \(see dmesg\)",
    )
    empty = r"its log .*\.log is empty"
    part = r"\\x07:\u200b:error:\u200b:"
    for behaviour, message in {
        "ends": (
            f"ended with exit code 0 {early}serve must run the server in the foreground; {empty}"
        ),
        "killed": f"was killed by SIGKILL {early}if nobody killed it, {memory}; {empty}",
        "137": f"ended with exit code 137 {early}if .*{memory}; its log .* ends: .*",
        "out of CUDA memory": f"ended with exit code 1 {early}"
        r'its log .*\.log has "torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate '
        rf'2\.00 GiB\." and ends: shutting down part 2 {part} \| .* \| shutting down part 7 {part}',
    }.items():
        assert re.fullmatch(f"the server {message}", error_of(scripted(behaviour)))


def launched() -> tuple[psutil.Process, psutil.Process]:
    """Return the process that watches over this test's server, and the server itself.

    Other tests may leave helpers.
    """
    children = [c for c in psutil.Process().children() if is_alive(c.pid)]
    (launcher,) = [c for c in children if "serving/_launch" in " ".join(c.cmdline())]
    return launcher, next(c for c in launcher.children() if str(SCRIPT) in c.cmdline())


def test_a_server_that_ends_later_is_found_dead_and_dies_with_who_watches_over_it() -> None:
    """A worker ignores Ctrl-C, a server does not."""
    log = r'; its log .* ends: listening on \d+ \| "GET /health HTTP/1.1" 200 -$'
    killed = f"^the server was killed by SIGKILL; if nobody killed it, the machine .*{log}"
    for index, number, message in (
        (1, signal.SIGKILL, killed),
        (1, signal.SIGINT, "ended with exit code 1|SIGINT"),
        (0, signal.SIGKILL, "the process that supervised the server was killed"),
        (0, signal.SIGTERM, r"the server was killed by SIGTERM; its log .* ends: "),
    ):
        with scripted("healthy") as server:
            processes = launched()
            server.check()
            processes[index].send_signal(number)
            with pytest.raises(RunError, match=message):
                server.check(GONE_S)
            with pytest.raises(RunError):  # it stays dead
                server.check()
            assert left_of([processes[1].pid]) == []


def test_a_taken_port_is_replaced_by_another_one(tmp_path: Path) -> None:
    (tmp_path / "twice").mkdir()
    with scripted("taken once", tmp_path) as server:
        assert "in use" not in server.log.read_text("utf-8")
    message = error_of(scripted("taken", tmp_path / "twice"))
    assert "answered 200; its port was in use in each of 3 tries, on different ports; " in message
    assert message.endswith("OSError: [Errno 98] Address already in use")
    starts = [(folder / "starts").read_text("ascii") for folder in (tmp_path, tmp_path / "twice")]
    assert starts == ["++", "+++"]


def test_a_server_that_never_becomes_healthy() -> None:
    for manner, health, answer in (
        ("never ready", "/health", "503"),
        ("healthy", "/v1/health", "404"),
        ("mute", "/health", r"no answer in \d\.\d s"),
        ("deaf", "/health", "Connection refused"),
    ):
        assert re.match(
            rf"the server was not healthy within start_timeout = 1 s: GET {health} last gave "
            rf"{answer}; raise start_timeout if it is only slow, and check that health is a "
            rf"path of the server; its log ",
            error_of(scripted(manner, limit_s=1.0, health=health)),
        )


def test_what_a_server_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a process that left its session and its parent, and ignores SIGTERM."""
    monkeypatch.setattr(serving, "KILL_GRACE_SECONDS", 0.2)
    for is_killed in (False, True):
        with scripted("leaves a grandchild", tmp_path) as server:
            grandchild = int((tmp_path / "grandchild").read_text("ascii"))
            assert is_alive(grandchild)
            if is_killed:
                launched()[1].kill()
                with pytest.raises(RunError, match="SIGKILL"):
                    server.check(GONE_S)
        assert not is_alive(grandchild)


def test_a_killed_worker_leaves_no_server(tmp_path: Path) -> None:
    """SIGKILL gives it no time to clean up, and still all that it started ends.

    A process that it forked, as libraries do, has copies of all its descriptors and lives on.
    """
    code = (
        "import os, sys, threading\n"
        "from pytest_mlperf.adapters.engines import serving\n"
        "serving.KILL_GRACE_SECONDS = 0.2\n"
        "given = dict(model=None, health='/health', start_timeout_s=20.0, environment={})\n"
        "with serving.Server(sys.argv[1:], engine='some', **given):\n"
        "    forked = os.fork()\n"
        "    if forked: print(forked, flush=True)\n"
        "    threading.Event().wait()\n"
    )
    command = [sys.executable, str(SCRIPT), "leaves a grandchild", "{port}", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, cwd=SCRIPT.parents[4]
    ) as worker:
        assert worker.stdout is not None
        try:
            forked = int(worker.stdout.readline())
            children = psutil.Process(worker.pid).children(recursive=True)
            family = [child.pid for child in children if child.pid != forked]
        finally:
            worker.kill()

    assert len(family) >= 3  # the launcher, the server, the grandchild
    assert int((tmp_path / "grandchild").read_text("ascii")) in family
    assert left_of(family) == []
    os.kill(forked, signal.SIGKILL)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("no code", "ascii")
    program.chmod(0o755)
    looked = f"looked in the folder of {sys.executable} and on PATH"
    for word, message in (
        (
            "no-such-program",
            f"no-such-program is not a program here ({looked}); install it, or give its whole path",
        ),
        (str(program), f"{program} cannot be started: Exec format error"),
    ):
        with pytest.raises(RunError) as caught, server_of([word, "{port}"]):
            pass
        assert str(caught.value) == f"serve: {message}"


def test_where_programs_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("on-path", "here", "home/venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "tool").write_text("#!/bin/sh\n", "ascii")
        (tmp_path / folder / "tool").chmod(0o755)
    (tmp_path / "home/venv/bin/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "on-path"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    assert Path(find_program(Path(sys.executable).name)).parent == Path(sys.executable).parent
    places = {
        "tool": "on-path/tool",
        "here/tool": "here/tool",
        "~/venv/bin/tool": "home/venv/bin/tool",
        "~/venv/bin/python": "home/venv/bin/python",
    }
    assert {word: find_program(word) for word in places} == {
        word: str(tmp_path / place) for word, place in places.items()
    }
    rows = [
        ("~/venv", r"did you mean ~/venv/bin/python\?"),
        ("here/other", r"here/other is not a program here \(looked at /"),
    ]
    assert unrefused(find_program, RunError, rows) == []


def test_meaningless_options_are_refused_before_anything_starts() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"command": []}, r"^engine some: serve is empty; write a list of words"),
        ({"command": ["", "{port}"]}, "the first word of serve is empty"),
        ({"command": ["x", "{prot}"]}, "serve has {prot}; known placeholders are {model}, "),
        ({"command": ["x", "8000"]}, "serve does not give the server its port"),
        (
            {"command": ["x", "{port}", "{model}"]},
            "serve has {model}, but the suite names no model",
        ),
        ({"health": "health"}, "health = 'health' is not a path of a URL"),
        ({"health": "/a b"}, "health = '/a b' is not a path of a URL"),
        ({"health": "/a\r\nX: y"}, r"health = .* is not a path of a URL"),
        ({"start_timeout_s": 0.0}, r"start_timeout = 0\.0 is not above 0"),
        ({"start_timeout_s": float("nan")}, "start_timeout = nan is not above 0"),
    ]

    def build(changes: dict[str, Any]) -> None:
        server_of(**{"command": ["x", "{port}"], **changes})

    assert unrefused(build, SuiteError, rows) == []
    for words, filled in (
        (["--port={port}", "{host}:{port}", "{model}"], ["--port=8", "h:8", "m"]),
        (['{"port": {port}}', "{{port}}", "${port}"], ['{"port": 8}', "{{port}}", "${port}"]),
    ):
        assert fill_in(words, {"port": "8", "host": "h", "model": "m"}) == filled


def test_a_server_gets_the_environment_it_was_given_and_its_log_lies_beside_that_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's stderr is engine.log in the folder of its run."""
    monkeypatch.setenv("OURS", "ours")
    code = "import os; print(*map(os.getenv, ('OURS', 'GIVEN'))); print('{port}'); exit(1)"
    server = server_of([sys.executable, "-c", code], environment={"GIVEN": "given"})
    stderr = os.dup(2)
    with (tmp_path / "engine.log").open("wb") as log:
        os.dup2(log.fileno(), 2)
        try:
            message = error_of(server)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    assert re.search(r"ends: ours given \| \d+", message)
    assert server.log == tmp_path / "server.log"
    assert "given" in server.log.read_text("utf-8")
