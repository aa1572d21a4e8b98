"""Cases on the nodes of a real Ray cluster: one session, whatever becomes of a node."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from tests.nvml.library import Fake, scenario
from tests.plugin.project import (
    LIGHT,
    RATE,
    SUITE,
    Project,
    case,
    last_line,
    near,
    section,
)
from tests.plugin.test_many import many, words
from tests.plugin.test_parts import plan
from tests.ray_cluster import RayCluster

__all__ = ["many", "plan"]  # the fixtures

# Ray is not imported here: it brings packages of its own, which other tests would see.
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.quiet,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs pytest-mlperf[ray]"),
]

LIMIT_S = 90.0
"""A session that needs longer hangs."""

SERVES = """
import json, os, time
from pathlib import Path
from pytest_mlperf.core.extension import Engine

class Serves(Engine):
    \"\"\"Notes where it runs, and when.\"\"\"

    def __init__(self, dataset, model, precision, note=""):
        self.note = note

    def __enter__(self):
        self.begun = time.time()
        return self

    def __exit__(self, *error):
        if self.note:
            names = ("NODE_NAME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RAY_JOB_ID")
            variables = {name: os.environ.get(name) for name in names}
            about = {**variables, "nice": os.nice(0), "times": [self.begun, time.time()]}
            file = Path(self.note) / f"{os.getpid()}.json"
            file.write_text(json.dumps(about))

    def submit(self, ids, indices, sink):
        for id in ids:
            time.sleep(0.002)
            sink.done([id])
"""

HERE = """
import pytest

def test_here():
    pass

@pytest.mark.mlperf(workload="own")
def test_there(mlperf):
    engine = dict(engine="null", dataset="synthetic", dataset_options=dict(samples=32))
    mlperf.run(**engine, options=dict(latency_s=0.002), min_duration="100ms").check()
"""

LONG = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "10min"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A head that offers nothing, a node with four GPUs that Ray believes in, and a plain one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with RayCluster(tmp_path_factory.mktemp("cluster"), client_port=port) as cluster:
        cluster.add("gpu", 4, "H100")
        cluster.add("plain")
        yield cluster


def serves(accelerators: str, options: str = "") -> str:
    more = f"options = {{ {options} }}\n" if options else ""
    return (
        f'[[engines]]\nuse = "serves:Serves"\nname = "serves"\naccelerators = {accelerators}\n'
        + more
    )


def long_suite(project: Project, accelerator: str = "cpu") -> None:
    """Write a suite whose measurement is interrupted."""
    project.pytester.makepyfile(serves=SERVES)
    engines = serves(f'["{accelerator}"]')
    project.suite("suites/a.mlperf.toml", name="long", engines=engines, scenarios=LONG)


def nodes_in(report: Path) -> dict[str, str]:
    """Return where each test ran, as JUnit says."""
    return {
        str(test.get("name")): str(place.get("value"))
        for test in ET.parse(report).iter("testcase")
        for place in test.iter("property")
        if place.get("name") == "mlperf_node"
    }


@contextlib.contextmanager
def session(project: Project, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run pytest in the background; its output goes to output.txt."""
    with (project.path / "output.txt").open("w") as output:
        command = [sys.executable, "-u", "-m", "pytest", *LIGHT, "-v", *arguments]
        process = subprocess.Popen(command, cwd=project.path, stdout=output, stderr=output)
        try:
            yield process  # type: ignore[misc]
        finally:
            process.kill()
            process.wait()


def output_of(project: Project) -> str:
    return (project.path / "output.txt").read_text("utf-8", "replace")


def wait_until_measured(project: Project, process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until LoadGen runs on a node."""
    deadline = time.monotonic() + LIMIT_S
    logs = f"{project.path.name}-*/.mlperf/runs/*/long-*/performance/mlperf_log_detail.txt"
    while not any(folder.glob(logs)):
        assert process.poll() is None, output_of(project)
        assert time.monotonic() < deadline, output_of(project)
        time.sleep(0.05)


def children_of_cases(cluster: RayCluster) -> list[psutil.Process]:
    """Return the processes of cases on all nodes, which name the folder of their project."""
    alive = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if str(cluster.folder) in words and re.search("fleet.child|worker.worker", words):
                alive.append(process)
    return alive


def assert_nobody_is_left(cluster: RayCluster) -> None:
    deadline = time.monotonic() + 30.0
    while left := children_of_cases(cluster):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_cases_go_where_they_fit_and_are_one_session(
    project: Project, cluster: RayCluster, tmp_path: Path
) -> None:
    """Reports, results, runs, JUnit and `--lf` are those of a session on one machine."""
    project.pytester.makepyfile(serves=SERVES, test_here=HERE)
    project.suite(top1=100.0)
    project.baseline(near(RATE))
    project.suite("suites/slow.mlperf.toml", name="slow")
    project.baseline(near(RATE * 3), of=case(workload="slow"))
    notes = tmp_path / "notes"
    notes.mkdir()
    engines = serves('["H100"]', f'note = "{notes}"')
    project.suite("suites/gpu.mlperf.toml", name="onh100", engines=engines)

    result = project.run_process(
        "suites", "test_here.py", "--mlperf-on", cluster.address, "--mlperf-pretend=H100",
        "--junitxml=junit.xml", "--mlperf-json=copy.json",
    )  # fmt: skip

    assert last_line(result) == "1 failed, 3 passed, 2 no baseline", result.stdout.str()
    outcomes = {one.test: one.verdict.outcome for one in project.results().cases}
    assert sorted(outcomes.values()) == sorted(
        [Outcome.OK, Outcome.OK, Outcome.PERF_DROP, Outcome.NO_BASELINE, Outcome.NO_BASELINE]
    )
    places = nodes_in(project.path / "junit.xml")
    assert len(places) == 5
    assert len(set(places.values())) == 2
    (note,) = [json.loads(file.read_text("utf-8")) for file in notes.iterdir()]
    assert {**note, "times": None} == {
        "NODE_NAME": "gpu",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": None,
        "RAY_JOB_ID": None,
        "nice": 0,
        "times": None,
    }
    for case_result in project.results().cases:  # the logs of each run came back
        for run in case_result.verdict.runs:
            assert (project.path / run.folder / "mlperf_log_detail.txt").is_file()
    failed = next(test for test, outcome in outcomes.items() if outcome is Outcome.PERF_DROP)
    again = project.run_process("suites", "--lf", "--mlperf-on", cluster.address)
    assert last_line(again) == "1 failed"
    assert failed in again.stdout.str()


def test_each_gpu_has_one_case_and_several_are_one_gang(
    project: Project, cluster: RayCluster, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    project.pytester.makepyfile(serves=SERVES)
    for name, word in (("a", "2xH100"), ("b", "2xH100"), ("c", "2xH100")):
        engines = serves(f'["{word}"]', f'note = "{notes}"')
        project.suite(f"suites/{name}.mlperf.toml", name=name, engines=engines)

    result = project.run_process(
        "suites", "--mlperf-on", cluster.address, "--mlperf-pretend=2xH100",
        "-omlperf_neighbours=yes",
    )  # fmt: skip

    assert last_line(result) == "3 no baseline", result.stdout.str()
    used: dict[str, list[list[float]]] = {}
    for file in notes.iterdir():
        note = json.loads(file.read_text("utf-8"))
        devices = note["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(devices) == 2
        for device in devices:
            used.setdefault(device, []).append(note["times"])
    assert set(used) == {"0", "1", "2", "3"}
    for times in used.values():
        ordered = sorted(times)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_a_case_on_a_gpu_sees_the_one_that_it_was_given(
    project: Project, cluster: RayCluster, tmp_path: Path
) -> None:
    """Nothing is pretended: its node has an H200, for which the session's machine is not asked."""
    nvml = Fake(tmp_path)
    nvml.write(*scenario("util 90 40"))
    library = {name: nvml.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO")}
    cluster.add("h200", 1, "H200", **library)
    project.suite(accelerators=["H200"])
    try:
        result = project.run_process("suites", "--mlperf-on", cluster.address, "-omlperf_power=off")
    finally:
        cluster.remove("h200")

    assert last_line(result) == "1 no baseline", result.stdout.str()
    (case_result,) = project.results().cases
    assert case_result.verdict.subject is not None
    assert case_result.verdict.subject.identity["gpu"] == "NVIDIA H200"
    assert not case_result.pretended


def test_an_accelerator_that_no_node_has_is_an_error_that_lists_those_there(
    project: Project, cluster: RayCluster
) -> None:
    project.suite(accelerators=["B200", "8xH100"])

    result = project.run_process("suites", "--mlperf-on", cluster.address)

    assert last_line(result) == "2 failed"
    headlines = [sentence(one.verdict.headline) for one in project.results().cases]
    for headline, word in zip(headlines, ("B200", "8xH100"), strict=True):
        assert headline.startswith(f"infrastructure: no node of the cluster has {word}; the nodes")
        assert "4xH100 and cpu" in headline
    required = project.run_process(
        "suites", "--mlperf-on", cluster.address, "--mlperf-accelerator=B200"
    )
    assert required.ret == 3
    required.stdout.fnmatch_lines(["*mlperf: accelerator B200 is required, but no node of the*"])


def test_a_lost_node_is_one_error_and_the_rest_is_reported(
    project: Project, cluster: RayCluster
) -> None:
    node_folder = cluster.add("doomed", 1, "L40S")
    long_suite(project, "L40S")
    project.suite("suites/b.mlperf.toml", name="next", accelerators=["L40S"])
    project.suite(SUITE)

    with session(
        project, "suites", "--mlperf-on", cluster.address, "-k", "long or next",
        "--mlperf-pretend=L40S", "--junitxml=junit.xml",
    ) as process:  # fmt: skip
        wait_until_measured(project, process, node_folder)
        cluster.remove("doomed")
        code = process.wait(LIMIT_S)

    output = output_of(project)
    assert code == 1, output
    lost, later = (one.verdict for one in project.results().cases)
    assert re.match(
        r"infrastructure: node .* was lost while this case ran: ", sentence(lost.headline)
    ), output
    assert (lost.outcome, later.outcome) == (Outcome.ERROR, Outcome.NO_BASELINE), output
    assert 'errors="0" failures="1"' in (project.path / "junit.xml").read_text("utf-8")
    assert_nobody_is_left(cluster)


@pytest.mark.parametrize(
    ("words", "headline"),
    [
        ("fleet.child", "infrastructure: node .*: its pytest was killed by SIGKILL"),
        ("ray::NodeCase", "infrastructure: node .* was lost while this case ran: ActorDiedError"),
        ("fleet.bridge", "infrastructure: connection to the cluster at .* lost: the helper"),
    ],
)
def test_killed_processes_are_one_error_and_the_session_ends(
    project: Project, cluster: RayCluster, words: str, headline: str
) -> None:
    long_suite(project)

    with session(project, "suites", "--mlperf-on", cluster.address) as process:
        wait_until_measured(project, process, cluster.folder / "plain")
        (pytest_there,) = [
            other for other in children_of_cases(cluster) if "fleet.child" in str(other.cmdline())
        ]
        others = [pytest_there, pytest_there.parent(), *psutil.Process(process.pid).children()]
        (victim,) = [other for other in others if other and words in str(other.cmdline())]
        victim.kill()
        code = process.wait(LIMIT_S)

    assert code == 1, output_of(project)
    (result,) = project.results().cases
    assert re.match(headline, sentence(result.verdict.headline)), sentence(result.verdict.headline)
    assert_nobody_is_left(cluster)


def test_ctrl_c_ends_remote_runs_and_keeps_finished_results(
    project: Project, cluster: RayCluster
) -> None:
    long_suite(project)
    project.suite("suites/b.mlperf.toml", name="quick", accelerators=["H100"])
    arguments = ("suites", "--mlperf-on", cluster.address, "--mlperf-pretend=H100")

    with session(project, *arguments) as process:
        wait_until_measured(project, process, cluster.folder / "plain")
        deadline = time.monotonic() + LIMIT_S
        while "NO BASELINE" not in output_of(project):  # kept before it is shown
            assert time.monotonic() < deadline, output_of(project)
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT_S)

    assert code == pytest.ExitCode.INTERRUPTED, output_of(project)
    assert [one.verdict.case.workload for one in project.results().cases] == ["quick"]
    assert "to continue, repeat the command with --mlperf-resume" in output_of(project)
    assert_nobody_is_left(cluster)

    project.suite("suites/a.mlperf.toml", name="long", engines=serves('["cpu"]'))
    result = project.run_process(*arguments, "--mlperf-resume")

    assert result.ret == 0, result.stderr.str()
    assert last_line(result) == "2 no baseline", result.stdout.str()
    note = "note      quick-Offline-null-fp32-H100: result of the interrupted session"
    assert note in result.stdout.str()


def test_the_first_failure_ends_a_session_that_shall_stop(
    project: Project, cluster: RayCluster
) -> None:
    long_suite(project)
    project.suite("suites/b.mlperf.toml", name="quick", accelerators=["H100"])
    project.breaks(case(workload="quick", accelerator="H100"))

    result = project.run_process(
        "suites", "-x", "--mlperf-on", cluster.address, "--mlperf-pretend=H100"
    )

    assert last_line(result) == "1 failed"
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert_nobody_is_left(cluster)


def test_baselines_that_nodes_record_come_back(project: Project, cluster: RayCluster) -> None:
    if find_spec("grpc") is None:
        pytest.skip("needs ray[client]")
    project.suite()

    result = project.run_process(
        "suites", "--mlperf-on", cluster.client_address, "--mlperf-update=missing",
        "-omlperf_baseline_runs=2",
    )  # fmt: skip

    assert last_line(result) == "1 recorded", result.stdout.str()
    assert len(project.recorded().runs) == 2


def test_many_pairs_are_judged_together_wherever_they_ran(
    plan: Project, cluster: RayCluster
) -> None:
    result = plan.run_process(
        "suites", "--mlperf-on", cluster.address, "--mlperf-manifest", "plan.json",
        "-k", "doubt or fine or clear",
    )  # fmt: skip

    outcomes = words(plan)
    clear = dict.fromkeys(("clear1", "clear2", "clear3"), Outcome.PERF_DROP)
    assert outcomes == {"fine": Outcome.OK, "doubt": Outcome.PROVISIONAL, **clear}
    assert {one.pairs for one in plan.results().cases} == {25}
    assert "25 pairs judged together: 3 PERF DROP, 1 PROVISIONAL drop" in " ".join(section(result))


@pytest.mark.parametrize("command", ["remove", "restart"])
def test_a_session_ends_when_the_head_is_lost(
    project: Project, tmp_path: Path, command: str
) -> None:
    """Also where another one is at its address at once: it knows nothing of this session."""
    long_suite(project)
    project.suite("suites/b.mlperf.toml", name="next")
    with RayCluster(tmp_path / "cluster") as cluster:
        node_folder = cluster.add("only")
        with session(project, "suites", "--mlperf-on", cluster.address) as process:
            wait_until_measured(project, process, node_folder)
            cluster.tell(command, "head")
            code = process.wait(LIMIT_S)
        assert_nobody_is_left(cluster)

    assert code == 1, output_of(project)
    headlines = [sentence(one.verdict.headline) for one in project.results().cases]
    assert len(headlines) == 2
    assert all(" lost" in headline for headline in headlines), headlines


def test_a_cluster_that_is_not_there_is_a_usage_error(project: Project) -> None:
    project.suite()

    result = project.run("suites", "--mlperf-on", "127.0.0.1:9")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line]
    assert line.startswith("ERROR: --mlperf-on 127.0.0.1:9: no connection: ")
