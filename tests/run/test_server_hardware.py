"""A server's hardware is asked by commands and pages; each failure of one is one error."""

from __future__ import annotations

import ast
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf import cli
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.hardware import nvidia, probe
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run import server_hardware
from pytest_mlperf.run.power.exporter import Exporter, find_exporter, watched_exporter
from pytest_mlperf.run.scraping import PageError
from pytest_mlperf.run.server_hardware import ProbePage, ServerSources, output_of
from pytest_mlperf.suite.tables import ServerEntry
from tests.exporters import exporting, page
from tests.hardware.test_server import World
from tests.nvml import library
from tests.nvml.library import Fake, scenario

pytestmark = pytest.mark.process

STDIN = (sys.executable, "-I", "-S", "-")
"""A Python without pytest-mlperf, which reads the probe from stdin."""

ELSEWHERE = "http://192.0.2.1:8000"
"""An address that no machine has (RFC 5737)."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """GPUs for the children of this process."""
    fake_gpus = Fake(tmp_path)
    fake_gpus.write(*scenario("mig 0", "limit 699.4", "pci 233510DE 16C110DE"))
    for name, value in fake_gpus.environment.items():
        monkeypatch.setenv(name, value)
    return fake_gpus


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for an address that nobody has, or knows the GPUs of another one."""
    server_hardware.own_node_id.cache_clear()
    monkeypatch.setattr("pytest_mlperf.run.scraping.PAGE_TIMEOUT_SECONDS", 0.2)


def sources(accelerator: str = "cpu", **entry: Any) -> ServerSources:
    """Return the sources of a server elsewhere."""
    if not isinstance(entry.get("probe", ""), str):
        entry["probe"] = shlex.join(entry["probe"])
    table = ServerEntry.model_validate(entry)
    return ServerSources(url=ELSEWHERE, accelerator=accelerator, entry=table)


def printing(text: str, code: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})")


def test_the_probe_is_one_file_of_python_3_9_and_its_standard_library() -> None:
    tree = ast.parse(Path(probe.__file__).read_text("utf-8"), feature_version=(3, 9))
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert modules <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "lines",
    [
        "device",
        "device | limit 502.6 | ecc 0 1 | virtualization 1",
        "device | event 0x2 sm=1500",
        "device | application 1200 1980",
        "fail nvmlDeviceGetMemoryInfo 4 | device",
        "fail nvmlDeviceGetEnforcedPowerLimit 3 | device",
        "device | device | device",
        "device | nvlink none | device | nvlink none",
    ],
)
def test_a_probe_reports_the_identity_of_local_gpus(fake: Fake, lines: str) -> None:
    fake.write(*lines.split(" | "))
    report = json.loads(output_of("the probe", STDIN, Path(probe.__file__)))
    with fake.here():
        local = nvidia.read(library.binding())["gpus"]

    sampling = {"power_scope", "energy"}
    expected = [
        {name: value for name, value in gpu["identity"].items() if name not in sampling}
        for gpu in local
    ]
    assert [gpu["identity"] for gpu in report["gpus"]] == expected
    assert [gpu["uuid"] for gpu in report["gpus"]] == [probe.hashed(gpu["uuid"]) for gpu in local]
    assert report["trouble"] is None


def test_a_cpu_server_is_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = sources(probe=STDIN).ask().properties
    assert properties["server"] == "probe"
    assert properties.keys() == {"server", "cpu", "cores", "node"}


HANGS = (sys.executable, "-c", "import time; time.sleep(60)")
FAULTS: list[tuple[tuple[str, ...], str]] = [
    (HANGS, "the probe did not end within 0.5 s: try it by hand"),
    (("no-such-command",), "the probe cannot start: no-such-command: No such file"),
    (("nul\0", "x"), "the probe cannot start: "),
    (printing("Permission denied (publickey).", 255), "exit code 255: Permission denied"),
    (printing("welcome"), "printed 'welcome', which is not JSON"),
    (printing(""), "printed 'nothing', which is not JSON"),
    (printing('{"kind": "other"}'), "not of pytest-mlperf machine --json"),
    ((sys.executable, "-c", "while 1: print('x' * 9999)"), "the probe prints more than 0 MiB"),
    ((sys.executable, "-c", "while 1: print('x' * 9999, end='')"), "prints more than 0 MiB"),
]


@pytest.mark.parametrize(("command", "text"), FAULTS)
def test_a_probe_that_fails_is_one_error(
    command: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_hardware, "PROBE_SECONDS", 0.5 if command is HANGS else 30.0)
    monkeypatch.setattr(server_hardware, "MAX_OUTPUT_BYTES", 100_000)
    began_s = time.monotonic()
    with pytest.raises(RunError) as caught:
        sources(probe=command).ask()
    assert text in str(caught.value)
    assert caught.value.layer == "server"
    assert time.monotonic() - began_s < 30


def test_a_probe_that_does_not_read_its_program_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe may hold less than the program: 64 KiB, or 8 if a user has many."""
    program = tmp_path / "probe.py"
    program.write_text("#" * 200_000)
    monkeypatch.setattr(probe, "__file__", str(program))
    monkeypatch.setattr(server_hardware, "PROBE_SECONDS", 0.5)
    with pytest.raises(RunError, match=r"did not end within 0\.5 s"):
        sources(probe=HANGS).ask()
    monkeypatch.setattr(server_hardware, "PROBE_SECONDS", 30.0)
    probed = sources("8xH200", probe=printing(World().probe.decode()))
    assert probed.ask().properties["gpus"] == 8


def test_words_of_a_login_shell_are_passed_over() -> None:
    report = World().probe.decode()
    code = f"print('Last login: today'); print({report!r}); print('logout')"
    probed = sources("8xH200", probe=(sys.executable, "-c", code))
    assert probed.ask().properties["gpus"] == 8


def test_the_clients_own_answer_is_not_that_of_a_server_elsewhere() -> None:
    node = json.loads(output_of("the probe", STDIN, Path(probe.__file__)))["node"]
    client = Machine(cpu={"cpu": "x"}, machine_id=Path("/etc/machine-id").read_text().strip())
    assert node == probe.hashed(f"pytest-mlperf {client.machine_id}")
    probed = sources(probe=STDIN)
    with pytest.raises(RunError, match=r"the probe ran on this machine, but the .* http://192\.0"):
        probed.machine(client)


@pytest.mark.parametrize(
    "url",
    ["http://box:99999/v1", "http://[::1", "http://box:x", "http://", "https:///v1", "unix://"],
)
def test_an_address_of_no_server_is_one_error(url: str) -> None:
    with pytest.raises(RunError, match="is not the address of a server, such as http://") as caught:
        ServerSources(url=url)
    assert caught.value.layer == "server"


@pytest.mark.parametrize("scene", ["device | mig 2", "device | device"])
def test_the_clients_own_answer_is_known_if_its_gpus_are_divided_or_hidden(
    fake: Fake, scene: str
) -> None:
    """A client knows its visible GPUs alone, each instance by its own UUID."""
    fake.write(*scene.split(" | "))
    gpu = {"uuid": "MIG-0-0" if "mig" in scene else "GPU-1", "gpu": "NVIDIA H200", "mig": None}
    client = Machine(cpu={"cpu": "x"}, gpus=(gpu,))
    with pytest.raises(RunError, match=r"the probe ran on this machine, but the .* http://192\.0"):
        sources(probe=STDIN).machine(client)


TUNNEL = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("name", "is_here"), [("serve", True), ("socat", False)])
def test_a_tunnel_on_this_machine_is_not_the_server(
    name: str, is_here: bool, tmp_path: Path
) -> None:
    script = tmp_path / name
    script.write_text(TUNNEL)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        for host in ("localhost", "http://127.0.0.1", "http://localhost"):
            local = ServerSources(url=f"{host}:{port}")
            assert local.is_here is is_here
        client = Machine(cpu={"cpu": "x", "cores": 2})
        machine = local.machine(client)
        child.kill()
    assert (machine is client) is is_here
    if not is_here:
        assert machine.identity("cpu") == {
            "server": "unknown",
            "url": f"localhost:{port}",
            "hardware": None,
        }
    assert not ServerSources(url=ELSEWHERE, accelerator="cpu").is_here


def test_gpus_of_a_suite_that_this_machine_lacks_are_those_of_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = Machine(cpu={"cpu": "x"})
        machine = ServerSources(url=url, accelerator="8xH200").machine(client)
    assert machine.identity("8xH200")["server"] == "declared"
    assert machine.has("8xH200")


KUBECTL = """#!{python}
import json, sys
with open({calls!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
sys.stdout.buffer.write(open({folder!r} + "/" + sys.argv[4], "rb").read())
"""


def test_kubernetes_is_asked_for_the_pods_and_for_their_nodes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pods").write_bytes(World().pods)
    (tmp_path / "nodes").write_bytes(World().nodes)
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(
        KUBECTL.format(python=sys.executable, calls=str(calls), folder=str(tmp_path))
    )
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    server = sources("8xH200", kubernetes="serving/app=vllm").ask()
    assert server.properties["server"] == "kubernetes"
    assert server.properties["gpu"] == "NVIDIA H200"
    assert calls.read_text().splitlines() == [
        "get -o json pods -n serving -l app=vllm",
        "get -o json nodes box-1",
    ]


def test_a_servers_own_pages_and_headers_are_read() -> None:
    start = iter(range(9))

    def show(handler: BaseHTTPRequestHandler) -> None:
        texts = {
            "/version": '{"version": "0.11.0"}',
            "/metrics": f"process_start_time_seconds {next(start) % 2}\n",
        }
        handler.path = handler.path.removeprefix("/base")
        text = texts.get(handler.path, "")
        body = text.encode()
        handler.send_response(200 if text else 404)
        handler.send_header("X-Compute-Type", "2-nvidia-h100-80gb-hbm3")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with exporting(show) as server:
        url = server.url.replace("/metrics", "/base/v1")
        identity = ServerSources(url=url, accelerator="cpu").ask()
    assert identity.properties["gpu"] == "NVIDIA H100 80GB HBM3"
    assert identity.properties["gpus"] == 2
    assert identity.facts["server.version"] == "0.11.0"
    assert "at least 2 processes answer at this url" in sentence(identity.remarks[0])


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://h:99999/metrics", "gpu-box:9400", "ftp://h"]
)
def test_an_address_of_no_exporter_is_one_error(url: str) -> None:
    with pytest.raises(RunError, match=r"exporter: .* is not an address such as"):
        sources(exporter=url).ask()
    with pytest.raises(SuiteError, match="is not an address such as"):
        find_exporter(url)


def test_an_exporter_that_is_not_there_is_one_error() -> None:
    with exporting(page("", 404)) as server:
        exported = sources(exporter=server.url)
        with pytest.raises(RunError, match=r"exporter: .* 404; start it, or correct its address"):
            exported.ask()


def test_a_probe_is_watched_for_energy_by_the_clock_of_this_machine(fake: Fake) -> None:
    """Readings have the time of their arrival; their joules are those of the board's counter."""
    fake.restart("device", "energy 0.1")
    exporter = Exporter(probe=(sys.executable, "-I", "-S", "-"), gpus="1 x NVIDIA H200")
    began_s = time.time()
    with watched_exporter(exporter) as log:
        until_s = time.monotonic() + 60
        while len(log.looks) < 4 and time.monotonic() < until_s:
            time.sleep(0.05)
    assert log.by_probe
    assert log.failures == []
    joules = [look.gpus[probe.hashed("GPU-0")].joules for look in log.looks]
    assert len(joules) >= 4
    assert sorted(joules) == joules  # type: ignore[type-var]
    assert all(began_s <= look.time_s <= time.time() for look in log.looks)


NONSENSE = ("nonsense", "{}", '{"gpus": {"uuid": 1}}', "[" * 100_000)


@pytest.mark.parametrize("command", [*map(printing, NONSENSE), ("no-such-command",)])
def test_a_probe_without_energy_is_a_failed_reading(command: tuple[str, ...]) -> None:
    reading = ProbePage(command)
    with pytest.raises(PageError, match=r"printed no energy \(.*\): run the command of"):
        reading.read()
    reading.close()


@pytest.mark.parametrize("period_s", [0, -1, math.nan])
def test_a_machine_whose_gpus_have_no_energy_is_one_sentence(
    period_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> None:
        raise OSError("no driver")

    monkeypatch.setattr(probe, "Nvml", no_driver)
    with pytest.raises(SystemExit, match="GPUs cannot be read: no driver"):
        cli.main(["machine", "--watch", str(period_s)])


@pytest.mark.parametrize("period_s", [0, -1, math.nan, 0.25])
def test_a_probe_waits_between_readings(period_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        assert seconds == max(probe.MIN_PERIOD_S, period_s)
        raise BrokenPipeError

    monkeypatch.setattr(probe, "Nvml", lambda: SimpleNamespace(devices=list, energy=None))
    monkeypatch.setattr(time, "sleep", wait)
    with pytest.raises(BrokenPipeError):
        probe.watch(period_s)
