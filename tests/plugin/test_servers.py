"""Servers elsewhere are judged by their own hardware, in sessions of a user's project."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Confirmation, Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores import calibration
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.suite.plan import plan_suite, url_of
from tests.exporters import exporting, page
from tests.hardware.test_server import World
from tests.plugin.project import SUITE, Project, newest_results
from tests.plugin.test_dcgm import GATED_FROM_1_S, LIMITS, OFFLINE, outcomes

pytestmark = pytest.mark.process

ELSEWHERE = """
from pytest_mlperf.run import server_hardware
server_hardware.listeners = lambda root, port: set()
"""
"""The server of the test is behind a tunnel, for all that can be seen here."""

COMMAND = (
    sys.executable,
    "-c",
    f"import sys\n{ELSEWHERE}\nfrom pytest_mlperf.cli import main\nsys.exit(main())",
)

CLIENT = """
from pytest_mlperf.builtin.null import NullEngine

class Client(NullEngine):
    client = True

    def __init__(self, *, url, **others):
        super().__init__(**others)
"""
"""A client whose server takes as long as the null engine."""

ENGINE = """
[[engines]]
use = "client_engine:Client"
name = "served"
accelerators = {accelerators}
server = {server}
options = {{ url = "{url}", latency_s = 0.002, batch_size = 16, threads = 1 }}
"""

FAST = ("-omlperf_warmup=never", "-omlperf_control=off")


class Served:
    """A project whose suite measures a server that a probe describes."""

    def __init__(self, project: Project, url: str) -> None:
        self.project, self.url = project, url
        project.pytester.makeconftest(ELSEWHERE)
        (project.path / "client_engine.py").write_text(CLIENT)

    def suite(self, accelerators: str = '["8xH200"]', server: str = "{}") -> None:
        engines = ENGINE.format(accelerators=accelerators, url=self.url, server=server)
        self.project.suite(engines=engines)

    def probed(self, *worlds: World) -> None:
        """Let the probe print these worlds, one each time, the last one again and again."""
        folder = self.project.path
        for number, world in enumerate(worlds):
            (folder / f"world{number}.json").write_bytes(world.probe)
        (folder / "asked").write_text("0")
        (folder / "ask.py").write_text(
            "import pathlib, sys\n"
            'if "--watch" in sys.argv: sys.exit(1)\n'
            f"folder = pathlib.Path({str(folder)!r})\n"
            'number = int((folder / "asked").read_text())\n'
            '(folder / "asked").write_text(str(number + 1))\n'
            f'print((folder / f"world{{min(number, {len(worlds) - 1})}}.json").read_text())\n'
        )
        self.suite(server=f"{{ probe = {json.dumps(f'{sys.executable} ask.py')} }}")

    def verdict(self, *options: str) -> Verdict:
        self.project.run_process("suites", *FAST, *options)
        newest = newest_results(self.project.path)
        (case,) = read_results(newest).cases
        return case.verdict


@pytest.fixture
def served(project: Project) -> Iterator[Served]:
    with exporting(page("", 404)) as server:
        yield Served(project, server.url.removesuffix("/metrics"))


def test_a_case_on_gpus_that_the_client_lacks_is_measured_and_said_to_be_unverified(
    served: Served,
) -> None:
    served.suite()
    verdict = served.verdict()
    assert verdict.outcome is Outcome.NO_BASELINE
    assert verdict.subject is not None
    assert verdict.subject.identity == {
        "server": "declared",
        "url": served.url.removeprefix("http://"),
        "hardware": "8xH200",
    }
    assert any(
        "declared (8xH200), not verified" in str(note) for note in map(sentence, verdict.notes)
    )
    assert "client.cpu" in verdict.subject.surroundings


def test_another_machine_behind_the_url_is_never_an_improvement(served: Served) -> None:
    served.probed(World())
    assert served.verdict("--mlperf-update=missing").outcome is Outcome.RECORDED
    assert served.verdict().outcome not in {Outcome.NO_BASELINE, Outcome.INVALID, Outcome.ERROR}

    served.probed(World(power_limit_w=500))
    verdict = served.verdict()
    assert verdict.outcome is Outcome.NO_BASELINE
    notes = list(map(sentence, verdict.notes))
    assert any("power_limit_w 700, here 500" in str(note) for note in notes), notes

    served.probed(World(product="NVIDIA B200"))
    verdict = served.verdict()
    assert verdict.outcome is Outcome.ERROR
    assert "the suite says 8xH200, and the probe reports 8xB200" in sentence(verdict.headline)


def test_hardware_that_changes_in_a_session_makes_the_run_invalid(served: Served) -> None:
    served.probed(World(), World(node="box-2"))
    verdict = served.verdict()
    assert verdict.outcome is Outcome.INVALID
    assert [one.key for one in verdict.reasons] == [Key.SERVER_HARDWARE]
    assert "other hardware than before the run: node was" in sentence(verdict.headline)


def test_baselines_that_name_the_client_are_moved_by_the_command_of_the_message(
    served: Served,
) -> None:
    """Also if the suite wrote "cpu" for the accelerator of its server then."""
    project = served.project
    project.pytester.makeconftest("")
    served.suite('["cpu"]')
    assert served.verdict("--mlperf-update=missing").outcome is Outcome.RECORDED

    project.pytester.makeconftest(ELSEWHERE)
    served.probed(World())
    verdict = served.verdict()
    assert verdict.outcome is Outcome.NO_BASELINE
    command = "pytest-mlperf machine --adopt"
    assert any(command in str(note) for note in map(sentence, verdict.notes))

    moved = project.pytester.run(*COMMAND, "machine", "--adopt", "suites")
    assert moved.ret == 0
    moved.stdout.fnmatch_lines(["*8 x NVIDIA H200 (probe)", "*moved the baseline of *"])
    assert served.verdict().outcome not in {Outcome.NO_BASELINE, Outcome.ERROR}
    assert not list(project.path.glob("baselines/cpu/**/*.json"))


def test_a_servers_own_exporter_meters_it(served: Served) -> None:
    """Without --mlperf-dcgm; its GPUs are the identity, too few of them are an error."""
    with exporting(page(World().exporter)) as exporter:
        served.suite(server=f'{{ exporter = "{exporter.url}" }}')
        suite = served.project.path / SUITE
        more = '[limits]\nsamples_per_joule_dcgm = { max_drop = "40%" }'
        suite.write_text(suite.read_text("utf-8").replace("[limits]", more))
        result = served.project.run_process("suites", *FAST)
        # On this page the counters stand still.
        still = "*test skipped: 8xH200: *the energy counter changed less than twice*"
        result.stdout.fnmatch_lines([still])
        newest = newest_results(served.project.path)
        (case,) = read_results(newest).cases
        assert case.verdict.subject is not None
        identity = case.verdict.subject.identity
        assert (identity["server"], identity["gpus"]) == ("exporter", 8)
        served.suite('["H100"]', f'{{ exporter = "{exporter.url}" }}')
        verdict = served.verdict()
    assert verdict.outcome is Outcome.ERROR
    assert "says H100, and the exporter reports 8xH200" in sentence(verdict.headline)


METER = """
import json, pathlib, sys, time

folder = pathlib.Path(__file__).parent
if "--watch" not in sys.argv:
    print((folder / "world.json").read_text())
    sys.exit()
watts, state = json.loads((folder / "board.json").read_text())
for number in range(10**6):
    if state == "lost" and number == 10:
        sys.exit(1)
    joules = 1e6 if state == "stale" else watts * time.monotonic()
    gpu = {"uuid": "u", "gpu": "NVIDIA H200", "watts": watts, "joules": joules}
    print(json.dumps({"gpus": [gpu]}), flush=True)
    time.sleep(0.1)
"""
"""A probe whose `--watch` prints the energy of the board that board.json describes."""

Draw = Callable[[float, str], None]


@contextmanager
def metered(served: Served, source: str) -> Iterator[Draw]:
    """Gate the energy of a server with one GPU by a source; yield what sets power and state."""
    project = served.project
    project.pytester.makeconftest(
        ELSEWHERE + GATED_FROM_1_S + "server_hardware.WATCH_SECONDS = 0.1"
    )
    (project.path / "world.json").write_bytes(World(count=1).probe)
    (project.path / "meter.py").write_text(METER)
    board = {"watts": 200.0, "state": "", "answers": 0.0}

    def show(handler: BaseHTTPRequestHandler) -> None:
        board["answers"] += 1  # type: ignore[operator]
        if board["state"] == "lost" and board["answers"] > 20:  # type: ignore[operator]
            page("", 503)(handler)
            return
        moment_s = 0.0 if board["state"] == "stale" else time.monotonic() // 0.1 * 0.1
        millijoules = round(1e9 + 1000 * board["watts"] * moment_s)  # type: ignore[operator]
        values = (("POWER_USAGE", board["watts"]), ("TOTAL_ENERGY_CONSUMPTION", millijoules))
        labels = 'UUID="GPU-a",modelName="NVIDIA H200"'
        rows = (f"DCGM_FI_DEV_{name}{{{labels}}} {value}" for name, value in values)
        page("\n".join(rows))(handler)

    def draw(watts: float, state: str) -> None:
        board.update(watts=watts, state=state, answers=0.0)
        (project.path / "board.json").write_text(json.dumps([watts, state]))

    with exporting(show) as exporter:
        table = {
            "probe": f"{{ probe = {json.dumps(f'{sys.executable} meter.py')} }}",
            "exporter": f'{{ exporter = "{exporter.url}" }}',
        }
        engines = ENGINE.format(accelerators='["H200"]', url=served.url, server=table[source])
        project.suite(engines=engines, scenarios=OFFLINE, more=LIMITS)
        yield draw


@pytest.mark.parametrize("source", ["probe", "exporter"])
def test_a_servers_energy_is_gated_by_its_probe_and_by_its_exporter(
    served: Served, source: str
) -> None:
    """A proven rise fails; a counter that stands still, or goes away, is not judged."""
    with metered(served, source) as draw:
        draw(200, "")
        project, options = served.project, ("suites", *FAST, "-rs")
        recorded = ("-k", "performance", "--mlperf-update=missing", "-omlperf_baseline_runs=1")
        project.run_process(*options, *recorded)
        project.over_days()
        draw(600, "")
        result = project.run_process(*options)
        assert outcomes(project)["efficiency"] is Outcome.POWER_DROP
        result.stdout.re_match_lines([r"POWER DROP samples/J by DCGM −[67]\d\.\d % .*"])
        seldom = {"probe": "the GPU's driver does not", "exporter": "--collect-interval"}[source]
        draw(600, "stale")
        text = " ".join(project.run_process(*options).stdout.str().split())
        assert outcomes(project).keys() == {"performance"}
        assert re.search(f"the energy counter changed less than twice in 3 s: .*{seldom}", text)
        draw(600, "lost")
        text = " ".join(project.run_process(*options).stdout.str().split())
        if source == "probe":  # which still describes the server after the run
            assert outcomes(project).keys() == {"performance"}
            assert Outcome.ERROR not in outcomes(project).values()
            assert "the probe was not read to the end of the run: the probe printed no" in text
        else:
            assert set(outcomes(project).values()) == {Outcome.ERROR}
            assert "answers 503; start it, or correct its address" in text


def test_doctor_and_machine_show_the_hardware_and_its_source(served: Served) -> None:
    served.probed(World())
    run = served.project.pytester.run
    machine = run(sys.executable, "-m", "pytest_mlperf", "machine", "--json", "suites")
    assert json.loads(machine.outlines[0])["gpu"] == "NVIDIA H200"
    doctor = run(sys.executable, "-m", "pytest_mlperf", "doctor", "suites")
    text = " ".join(" ".join(doctor.outlines).split())
    assert f"{served.url} runs on 8 x NVIDIA H200 (probe)" in text
    (served.project.path / "ask.py").write_text("print('no route to host')")
    doctor = run(sys.executable, "-m", "pytest_mlperf", "doctor", "suites")
    assert "no route to host" in doctor.stdout.str()
    assert doctor.ret == 3  # no case can run


def test_plan_gives_a_server_elsewhere_to_a_client_runner(served: Served) -> None:
    served.suite(server='{ exporter = "http://gpu-box:9400/metrics" }')
    words = [sys.executable, "-m", "pytest_mlperf", "plan", "--format", "github"]
    (job,) = json.loads(served.project.pytester.run(*words).outlines[0])["include"]
    assert job["accelerator"] == "cpu"
    served.project.suite(
        engines='[[engines]]\nuse = "openai"\naccelerators = ["8xH200"]\n'
        'options = { url = "http://127.0.0.1:8000" }'
    )
    (job,) = json.loads(served.project.pytester.run(*words).outlines[0])["include"]
    assert job["accelerator"] == "8xH200"  # 127.0.0.1 is a server of the runner


def test_tritons_address_without_a_scheme_may_be_this_machine(project: Project) -> None:
    for address, runner in (("localhost:8001", "H100"), ("gpu-box:8001", "cpu")):
        engine = '[[engines]]\nuse = "triton"\naccelerators = ["H100"]\n'
        options = f'options = {{ url = "{address}", served_model = "m" }}\n'
        path = project.suite(engines=engine + options)
        (planned,) = plan_suite(path)
        assert url_of(planned) == f"http://{address}"
        assert planned.accelerators == (runner,)


def test_a_drop_with_other_options_is_confirmed_on_the_hardware_of_the_server(
    served: Served,
) -> None:
    served.probed(World())
    assert served.verdict("--mlperf-update=missing").outcome is Outcome.RECORDED
    suite = served.project.path / SUITE
    suite.write_text(suite.read_text("utf-8").replace("latency_s = 0.002", "latency_s = 0.01"))
    asked = served.project.path / "asked"
    asked.write_text("0")
    verdict = served.verdict()
    assert verdict.interleaved is not None
    assert verdict.interleaved.state is Confirmation.PROVEN
    runs = len(verdict.runs) + verdict.interleaved.runs
    assert int(asked.read_text("utf-8")) > runs  # once before the case, and after each run


def test_turns_measures_servers_elsewhere(served: Served) -> None:
    served.suite()
    suite = served.project.path / SUITE
    text = suite.read_text("utf-8")
    suite.with_name("before.mlperf.toml").write_text(text.replace("0.002", "0.004"), "utf-8")
    turns = served.project.pytester.run(*COMMAND, "turns", SUITE, "suites/before.mlperf.toml")
    assert turns.ret == 1
    turns.stdout.fnmatch_lines(["*on 8xH200", "*PERF DROP *"])


def test_a_calibration_is_of_the_server_not_of_its_client(served: Served) -> None:
    served.probed(World())
    words = (*COMMAND, "calibrate", "suites", "--runs", "2", "--write")
    assert served.project.pytester.run(*words).ret == 0
    stored = calibration.load(served.project.path / "baselines/calibration/8xH200.json", "8xH200")
    subject = served.verdict().subject
    assert stored is not None
    assert subject is not None
    machine = stored.of(subject.identity)
    assert machine is not None
    assert [len(case.runs) for case in machine.cases] == [2]
