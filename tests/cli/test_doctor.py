"""`pytest-mlperf doctor`: what this machine can run, and why not."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli.doctor import (
    CaseState,
    State,
    SuiteState,
    exit_code,
    lines,
    on,
    requirements,
    suite_state,
)
from pytest_mlperf.cli.doctor._machine import (
    Check,
    cpu,
    gpu_sensors,
    gpus,
    installed,
    leases,
    load,
    loadgen,
    memory,
    plugin,
    power_limits,
    space,
)
from pytest_mlperf.cli.doctor.requirements import importing, lacking
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.hardware.host import Property
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.suite.libraries import declared, extras
from pytest_mlperf.suite.places import POINTER
from tests.cli.lab import ROOT, Lab
from tests.cli.text import Say, finished, widest

HERE = Machine(cpu={"cpu": "Testium 9000", "cores": 4.0, "governor": "performance"})


@pytest.fixture(autouse=True)
def _own_leases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))


SHAPE = [
    r"tools",
    r"  ok       Python            3\.\d+\.\d+ on Linux \S+",
    r"  ok       pytest            \S+, plugin pytest-mlperf \S+ is active",
    r"  ok       LoadGen           \S+ \(library \S+\), a trial run was VALID",
    r"  ok       pytest-benchmark  \S+",
    r"machine",
    r"  (ok|note) +GPUs +.+",
    r"  (ok|note) +CPU +.+ cores, governor .+",
    r"  (ok|note) +load +(quiet|busy|unknown).*",
    r"  (ok|note) +memory +\S+ GiB free of \S+ GiB",
    r"  (ok|note) +runs folder +\.mlperf, \S+ GiB free",
    r"  ok +leases +\S+( can be written)?",
    r"engines",
    r"  ok +null +can be used",
    r"libraries",
    r"suites, with the baselines that they have for this machine",
    r"  suites/first\.mlperf\.toml: first, quick",
    r"    state   case                    performance          accuracy",
    r"    ready   Offline-Acme-fp32-cpu   [567] runs in 1 session  yes",
    r"    absent  Offline-Acme-fp32-H200  none                 yes",
    r"    - H200 is not here",
    r"1 baseline: provisional: no change is failed at most 1 % of the time, a drop of",
    r"the limit that every run shares is passed at most 5 %, while sessions differ by",
    r"less than runs do \(below .* %\); 3 sessions more, best of other days, would( show)?",
    r"(show )?it: --mlperf-update=missing",
    r"",
    r"1 of 2 cases can run here: accelerator not here 1",
    r"next: pytest suites --mlperf-update=missing",
]
"""Lines in their order; others may stand between them."""


def test_it_reads_as_designed(own_lab: Lab, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_mlperf.cli.doctor._machine.importing", lambda _: {})
    own_lab.of_one_session()

    shown = say.ends(0, "doctor")
    left = shown.splitlines()
    for pattern in SHAPE:
        while left and not re.fullmatch(pattern, left[0]):
            left.pop(0)
        assert left, f"no line {pattern!r} in its place in:\n{shown}"
        left.pop(0)
    assert widest(shown) <= 80


@pytest.mark.process
def test_what_is_damaged_or_switched_off_is_found(tmp_path: Path) -> None:
    """LoadGen's library is damaged, which its child finds; the plugin is off; a suite is wrong."""
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "mlperf_loadgen.py").write_text("raise ImportError('bad ELF header')")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:mlperf\n")
    (tmp_path / "bad.mlperf.toml").write_text("schema = 2\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "shadow"), str(ROOT)]),
        "PYTEST_MLPERF_LEASES": str(tmp_path / "leases"),
    }
    command = (
        "import sys; from pytest_mlperf.cli import main; from pytest_mlperf.cli.doctor import "
        "_machine; _machine.importing = lambda _: {}; sys.exit(main(['doctor', '--json']))"
    )
    done = finished(sys.executable, "-c", command, cwd=tmp_path, env=environment)
    document = json.loads(done.stdout)
    checks = {check["name"]: check for check in document["checks"]}

    assert done.stderr == ""
    assert [checks[name]["state"] for name in ("LoadGen", "pytest")] == ["broken", "broken"]
    assert "bad ELF header" in checks["LoadGen"]["text"]
    assert checks["LoadGen"]["do"] == "pip install --force-reinstall mlcommons-loadgen"
    assert "is installed and not active in this folder" in checks["pytest"]["text"]
    assert "-p no:mlperf" in checks["pytest"]["do"]
    (suite,) = document["suites"]
    assert document["exit_code"] == done.returncode == 2
    assert suite["path"] == "bad.mlperf.toml"
    assert suite["error"].startswith("bad.mlperf.toml:1: ")


def test_the_last_line_is_the_command_that_helps_most() -> None:
    repair = Check(group="tools", name="LoadGen", state="broken", text="x", do="pip install it")
    with_baseline = SuiteState(path=Path("x"), cases=(replace(READY, performance="8 runs"),))
    named = [Path("suites/a b")]

    def told(checks: list[Check], suites: list[SuiteState]) -> list[str]:
        *found, last = lines(checks, suites, named, exit_code(checks, suites))
        return [" ".join(found[found.index("") + 1 :]), last]

    assert told([OK], []) == [
        "this machine can measure; there is no suite here yet",
        "next: pytest-mlperf init",
    ]
    assert told([repair], [state("ready")]) == [
        "nothing can be measured: LoadGen broken",
        "next: pip install it",
    ]
    assert told([OK], [state("ready"), state(error="x")])[1] == (
        "next: repair the lines named above, then pytest-mlperf doctor again"
    )
    assert told([OK], [state("absent", "missing")]) == [
        "0 of 2 cases can run here: accelerator not here 1, model, data or library missing 1",
        "next: set what is missing above, or name other suites",
    ]
    assert told([OK], [state("ready")])[1] == "next: pytest 'suites/a b' --mlperf-update=missing"
    assert told([OK], [with_baseline]) == ["1 of 1 case can run here", "next: pytest 'suites/a b'"]


def test_a_suite_that_is_named_and_not_there_is_an_error(here: Path, say: Say) -> None:
    assert say("doctor", "gone.mlperf.toml") == (
        2,
        "pytest-mlperf: gone.mlperf.toml is not here; name a suite file or a folder with suites\n",
    )


READY = CaseState(
    case="x", state="ready", reason="", accelerator="cpu", performance="none", accuracy="-"
)


def state(*states: State, error: str = "") -> SuiteState:
    cases = tuple(replace(READY, state=one) for one in states)
    return SuiteState(path=Path("x"), cases=cases, error=error)


OK = Check(group="tools", name="LoadGen", state="ok", text="")
BROKEN = Check(group="tools", name="LoadGen", state="broken", text="")
MISSING = Check(group="engines", name="torch", state="missing", text="")


def test_the_exit_code() -> None:
    rows: list[tuple[list[Check], list[SuiteState], int]] = [
        ([OK], [], 0),
        ([OK, MISSING], [state("ready", "absent", "missing")], 0),
        ([OK], [state("absent"), state("missing")], 3),
        ([BROKEN], [state("ready")], 3),
        ([BROKEN], [], 3),
        ([OK], [state("ready"), state(error="x")], 2),
        ([OK], [state("ready", "broken")], 2),
        ([BROKEN], [state(error="x")], 2),
    ]

    assert [exit_code(checks, suites) for checks, suites, _ in rows] == [row[2] for row in rows]


SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "first"
{workload}
[[engines]]
use = "{use}"
accelerators = {accelerators}
[engines.options]
{options}
[[scenarios]]
name = "Offline"
"""


def one(
    folder: Path,
    *,
    use: str = "null",
    workload: str = "",
    accelerators: str = '["cpu"]',
    options: str = "",
    failures: Mapping[str, str] | None = None,
) -> CaseState | str:
    """Return the state of the first case of a suite, or what is wrong with the suite."""
    path = folder / "a.mlperf.toml"
    text = SUITE.format(workload=workload, use=use, accelerators=accelerators, options=options)
    path.write_text(text, "utf-8")
    found = suite_state(path, HERE, folder / "baselines", failures or {})
    return found.cases[0] if found.cases else found.error


def case(folder: Path, **changes: Any) -> CaseState:
    """Return the state of the first case of a suite."""
    found = one(folder, **changes)
    assert isinstance(found, CaseState), found
    return found


IMAGENET = 'dataset = { use = "imagenet", path = "." }'
LACKS: list[tuple[dict[str, Any], State, str]] = [
    ({"accelerators": '["8xH200"]'}, "absent", "8xH200 is not here"),
    (
        {"workload": 'model = "${MODELS_OF_NOBODY}/m"'},
        "missing",
        "a.mlperf.toml:5: ${MODELS_OF_NOBODY} is not set; set it so that",
    ),
    (
        {"workload": 'dataset = { use = "synthetic", path = "gone" }'},
        "missing",
        "a.mlperf.toml:5: the dataset gone is not here (looked at ",
    ),
    ({"workload": IMAGENET}, "missing", "a.mlperf.toml:5: /"),
    (
        {"workload": IMAGENET, "failures": {"PIL": "bad ELF"}},
        "missing",
        "data set imagenet needs PIL, which breaks: bad ELF: pip install 'pytest-mlperf[onnx]'",
    ),
]


def test_a_case_that_lacks_something_says_what(tmp_path: Path) -> None:
    assert one(tmp_path) == replace(READY, case="Offline-null-fp32-cpu")
    for changes, expected, reason in LACKS:
        found = case(tmp_path, **changes)
        assert (found.state, reason in found.reason) == (expected, True), found

    workload = 'model = "${NO_A}/m"\ndataset = { use = "synthetic", path = "${NO_B}/d" }'
    found = case(tmp_path, workload=workload)
    assert re.findall(r"\$\{(\w+)\} is not set", found.reason) == ["NO_A", "NO_B"]


def of_onnx(
    folder: Path, model: bytes = b"bytes of a model", workload: str = "", **changes: Any
) -> CaseState | str:
    """Return the state of the first case of a suite for onnxruntime, whose model is `model`."""
    (folder / "m.onnx").write_bytes(model)
    return one(folder, use="onnxruntime", workload=f'model = "m.onnx"\n{workload}', **changes)


UNREADY: list[tuple[dict[str, Any], State, str]] = [
    ({"options": 'providers = ["cpu"]'}, "ready", ""),
    ({"model": b""}, "missing", "{suite}:5: {folder}/m.onnx is empty (0 bytes): get it again"),
    (
        {"model": POINTER + b"\noid sha256:12\nsize 7\n"},
        "missing",
        "{suite}:5: {folder}/m.onnx is a Git LFS pointer, not the file itself: git lfs pull",
    ),
    (
        {"workload": '[workload.scorer]\nuse = "top1"\ndtype = "float16"'},
        "broken",
        "{suite}:8: scorer top1: dtype = 'float16' is unknown; valid are float32, int32, "
        "int64, uint8",
    ),
    (
        {"workload": 'dataset = { use = "synthetic", path = "m.onx" }'},
        "missing",
        "{suite}:6: the dataset m.onx is not here (looked at {folder}/m.onx); did you mean m.onnx?",
    ),
]


@pytest.mark.process
def test_a_case_that_would_fail_at_once_is_not_ready(tmp_path: Path) -> None:
    for changes, expected, reason in UNREADY:
        found = of_onnx(tmp_path, **changes)

        assert isinstance(found, CaseState)
        suite = tmp_path / "a.mlperf.toml"
        assert (found.state, found.reason) == (
            expected,
            reason.format(suite=suite, folder=tmp_path),
        )


def test_a_wrong_option_is_a_defect_of_the_suite(tmp_path: Path) -> None:
    for options, message in (
        (
            'threads = 1\ntask = "anwser"',
            "12: engines[0].options.task: engine onnxruntime: task = 'anwser' is not one of "
            "classify, answer, detect, yolo, segment, tensor",
        ),
        (
            'batch_size = "8"',
            "11: engines[0].options.batch_size: batch_size is '8'; a whole number is needed",
        ),
    ):
        assert of_onnx(tmp_path, options=options) == f"{tmp_path / 'a.mlperf.toml'}:{message}"
    found = one(tmp_path, options="latency = 1")
    assert isinstance(found, str)
    assert "a.mlperf.toml:9: engines[0].options: engine 'null' has no option 'latency'" in found


@pytest.mark.process
def test_a_provider_that_is_not_installed_is_found_in_a_child(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    installed = onnxruntime.get_available_providers()
    absent = "DmlExecutionProvider"  # of another operating system
    options = f'providers = ["{absent}"]'

    found = of_onnx(tmp_path, options=options)
    elsewhere = of_onnx(tmp_path, options=options, accelerators='["H200"]')
    unknown = of_onnx(tmp_path, options='providers = ["Cudda"]')

    assert isinstance(found, CaseState)
    assert isinstance(elsewhere, CaseState)
    assert isinstance(unknown, CaseState)
    assert (found.state, found.reason) == (
        "missing",
        f"{tmp_path / 'a.mlperf.toml'}:11: engine onnxruntime: provider '{absent}' is not "
        f"installed; installed: {', '.join(installed)}. Try: a build of onnxruntime with {absent}",
    )
    assert (elsewhere.state, elsewhere.reason) == ("absent", "H200 is not here")
    assert unknown.state == "broken"
    assert unknown.reason.startswith(
        f"{tmp_path / 'a.mlperf.toml'}:11: engine onnxruntime: providers = 'Cudda' is none that "
        "onnxruntime knows; "
    )


@pytest.mark.process
def test_a_library_that_cannot_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime alone brings no TensorRT; engines that have nothing to try are not asked."""
    monkeypatch.setattr("pytest_mlperf.cli.doctor.requirements.LIMIT_S", 0.001)

    slow = requirements._asked('{"slow": 1}')
    monkeypatch.setattr("pytest_mlperf.cli.doctor.requirements.LIMIT_S", 60.0)

    assert slow == ("", "the engine's library does not answer within 0 s")
    assert requirements._asked("{}") == (
        "",
        "asking the engine's library failed: KeyError: 'target'",
    )

    onnxruntime = pytest.importorskip("onnxruntime")
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has TensorRT")

    assert "'TensorrtExecutionProvider' is not installed" in requirements.library_trouble(
        "tensorrt"
    )
    assert requirements.library_trouble("null") == ""


def test_all_files_of_data_and_scorer_are_told_at_once(tmp_path: Path) -> None:
    workload = (
        '[workload.dataset]\nuse = "coco_captions"\npath = "."\n[workload.scorer]\n'
        'use = "clip_fid"\nclip = "/no/clip"\ninception = "/no/i.pth"\nstatistics = "/no/s.npz"'
    )

    found = of_onnx(tmp_path, workload=workload)

    assert isinstance(found, CaseState)
    data, scorer, *_ = found.reason.splitlines()
    for text in ("has neither captions/captions.tsv", "latents: has neither latents.pt"):
        assert text in data
    for text in ("/no/clip: this folder lacks", "/no/i.pth: the weights", "/no/s.npz: the stat"):
        assert text in scorer


def test_only_cases_of_the_accelerators_that_are_named_are_shown() -> None:
    gpu = replace(READY, accelerator="H200", state="absent")
    several = replace(READY, accelerator="8xH200")
    both = SuiteState(path=Path("both"), cases=(READY, gpu, several))
    neither = SuiteState(path=Path("cpu only"), cases=(READY,))
    defective = SuiteState(path=Path("defective"), error="x")
    suites = [both, neither, defective]
    mixed = replace(both, cases=(READY, several))

    assert on(suites, []) == suites
    assert on(suites, ["H200"]) == [replace(both, cases=(gpu,)), defective]
    assert on(suites, ["8xH200", "cpu"]) == [mixed, neither, defective]
    assert exit_code([OK], on([both], ["H200"])) == 3
    with pytest.raises(MlperfError, match="no case runs on 'H100'; these suites name: cpu, H200, "):
        on(suites, ["H100"])


def test_the_accelerator_is_an_option(lab: Lab, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_mlperf.cli.doctor.look", lambda *_: ([OK], {}))
    shown = say.ends(0, "doctor", "--accelerator", "cpu")
    assert "1 of 1 case can run here" in shown
    assert "H200" not in shown[shown.index("suites, with") :]
    assert say("doctor", "--accelerator", "TPU")[1].endswith(
        "pytest-mlperf: no case runs on 'TPU'; these suites name: cpu, H200\n"
    )


def test_baselines_damaged_or_of_another_machine_are_told(tmp_path: Path, lab: Lab) -> None:
    file = tmp_path / "baselines/cpu/quick/first/Offline.null.fp32.json"
    file.parent.mkdir(parents=True)
    file.write_text("{", "utf-8")

    found = one(tmp_path)

    assert isinstance(found, CaseState)
    assert (found.state, found.performance) == ("broken", "damaged")
    assert "is not JSON" in found.reason

    suite = suite_state(lab.path / "suites/first.mlperf.toml", HERE, None, {})

    assert [case.performance for case in suite.cases] == ["other machine", "none"]
    assert [case.accuracy for case in suite.cases] == ["yes", "yes"], "it holds on every machine"


H200 = Machine(cpu={}, gpus=({"uuid": "GPU-0", "gpu": "NVIDIA H200"},))


def test_power_limits_that_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root on a host, as root in a plain container, and one that a killed process left."""
    (tmp_path / "self").mkdir()
    for mask, text in (
        ("000001ffffffffff", "can be set"),
        ("00000000a80425fb", "can be none but the one that is"),
    ):
        (tmp_path / "self/status").write_text(f"Name:\tpython\nCapEff:\t{mask}\n")
        (check,) = power_limits(H200, tmp_path)

        assert (check.state, text in check.text) == ("ok", True)
        assert bool(check.do) == ("none" in text)
    assert list(power_limits(HERE, tmp_path)) == []

    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    note = {"uuid": "GPU-0", "was_mw": 700_000, "enforced_mw": 700_000, "set_mw": 500_000}
    (tmp_path / "pytest-mlperf").mkdir()
    (tmp_path / "pytest-mlperf/GPU-0.power-limit.json").write_text(json.dumps(note))
    (check,) = power_limits(H200)

    assert check.state == "note"
    assert "GPU-0 is set to 500 W for a case, and had 700 W" in check.text


def test_gpus_are_named_as_suites_name_them_or_their_absence_is_explained() -> None:
    """And how they reach each other and differ."""
    none = gpus(replace(HERE, nvml_trouble="NVML's library is not here"))
    assert none.state == "note"
    assert none.text.startswith("none: NVML's library is not here")
    assert none.text.endswith("; only cases on cpu run here")
    gpu: dict[str, Property] = {"uuid": "x", "gpu": "NVIDIA H200", "memory_gib": 141}
    assert gpus(Machine(cpu={}, gpus=(gpu,))).text == "H200: NVIDIA H200"

    plain = [{"uuid": f"GPU-{n}", "index": n, "gpu": "NVIDIA H200", "ecc": True} for n in (0, 1)]
    paths = {"GPU-0": {"GPU-1": "SYS, no P2P"}, "GPU-1": {"GPU-0": "SYS, no P2P"}}
    alike = Machine(cpu={}, gpus=tuple(plain), paths=paths)
    mixed = replace(alike, gpus=(plain[0], {**plain[1], "ecc": False}), paths={})
    assert (gpus(alike).state, gpus(alike).text) == ("ok", "2xH200: NVIDIA H200, SYS, no P2P")
    assert (gpus(mixed).state, gpus(mixed).text) == (
        "note",
        "2xH200: NVIDIA H200, how they reach each other is not told; ecc is True, False on GPU 1",
    )


def test_what_can_be_sampled_of_the_gpus_is_said() -> None:
    both = [{"uuid": f"GPU-{n}", "index": n, "gpu": "NVIDIA H200"} for n in (0, 1)]
    rows: list[tuple[dict[str, dict[str, str]], str, str]] = [
        ({}, "ok", "all that is sampled can be read"),
        (
            {"GPU-0": {"nvlinks": "no"}, "GPU-1": {"nvlinks": "no", "pstate": "never"}},
            "ok",
            "not sampled: nvlinks of each GPU: no; pstate of GPU 1: never",
        ),
        ({"GPU-1": {"energy_j": "no"}}, "note", "not sampled: energy_j of GPU 1: no"),
    ]
    for unread, expected, text in rows:
        (check,) = gpu_sensors(Machine(cpu={}, gpus=tuple(both), unread=unread))
        assert (check.state, check.text) == (expected, text)
    assert list(gpu_sensors(HERE)) == []


def test_clocks_that_follow_the_load_are_worth_a_note() -> None:
    states = {"performance": "ok", None: "ok", "powersave": "note", "schedutil": "note"}
    for governor, expected in states.items():
        found = cpu(Machine(cpu={"cpu": "Testium 9000", "cores": 4.0, "governor": governor}))

        assert found.state == expected
        assert found.text.startswith(f"Testium 9000, 4.0 cores, governor {governor or 'unknown'}")


def test_the_load_of_now_is_told_and_what_can_be_seen_of_it() -> None:
    calm = dict.fromkeys(("waited_s", "stolen_s", "throttled_s", "memory_some_s"), 0.0)
    rows: list[tuple[dict[str, Any], str, str]] = [
        ({"foreign_s": 0.02, **calm}, "ok", "quiet now: others used 0.02 of 2 cores"),
        (
            {"foreign_s": 1.1, "waited_s": None, "stolen_s": 0.0, "others": {"cc1plus": 1.05}},
            "note",
            "busy now: others used 1.1 of 2 cores: cc1plus 1.1; not told here: waits for a core, "
            "processor quotas, memory pressure",
        ),
        (calm, "note", "unknown; not told here: processor use"),
    ]
    for seen, expected, text in rows:
        found = load(Contention(window_s=1.0, cores=2, **seen))

        assert (found.state, found.text) == (expected, text)
        assert bool(found.do) is text.startswith("busy")


def test_folders_memory_and_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert space(tmp_path / "new" / "deeper").state == "ok"
    assert space(tmp_path / "file" / "below").state == "broken"
    assert leases().state == "ok"
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "linked"))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "pytest-mlperf").symlink_to(tmp_path)
    assert leases().state == "broken"

    assert re.fullmatch(r"\d+\.\d GiB free of \d+\.\d GiB", memory().text)
    found = installed("no-such-distribution-here")
    assert (found.state, found.do) == ("missing", "pip install no-such-distribution-here")


@pytest.mark.process
def test_loadgen_and_pytest_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loadgen()

    assert (found.state, found.do) == ("ok", "")
    assert "a trial run was VALID" in found.text

    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest\n")

    found = plugin()

    assert found.state == "broken"
    assert "pytest --help fails here: " in found.text


def test_libraries_are_told_with_the_extra_that_brings_them() -> None:
    """What an extension declares is read and not imported; extras are those for users."""
    assert extras()["onnx"] == ["onnx", "onnxruntime", "pillow"]
    assert not {"dev", "train"} & set(extras())
    assert declared("engines", "onnxruntime") == ("onnxruntime", "onnx")
    assert declared("engines", "null") == ()
    assert declared("datasets", "imagenet") == ("PIL",)
    assert declared("engines", "package.of_the_user:Engine") == ()
    assert lacking("engines", "onnxruntime", {"onnxruntime": "OSError: x"}) == (
        "needs onnxruntime, which breaks: OSError: x",
        "pip install 'pytest-mlperf[onnx]'",
    )
    assert lacking("engines", "null", {}) is None


@pytest.mark.process
def test_libraries_are_imported_in_a_child_and_one_that_crashes_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("fine_lib", ""),
        ("raising_lib", "raise OSError('no such symbol\\nsecond line')"),
        ("crashing_lib", "import os; os._exit(7)"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    found = importing(["raising_lib", "crashing_lib", "fine_lib", "absent_lib"])

    assert found == {
        "raising_lib": "OSError: no such symbol",
        "crashing_lib": "importing it ends the process with 7",
        "absent_lib": "ModuleNotFoundError: No module named 'absent_lib'",
    }
    assert "fine_lib" not in sys.modules
