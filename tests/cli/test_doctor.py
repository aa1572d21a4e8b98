"""`pytest-mlperf doctor`: what this machine can run, and why not."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli.doctor import (
    MAX_LINES,
    CaseState,
    State,
    SuiteState,
    _machine,
    exit_code,
    limit_to_accelerators,
    lines,
    requirements,
    shorten_page,
    suite_state,
)
from pytest_mlperf.cli.doctor._machine import Check
from pytest_mlperf.cli.doctor.requirements import import_failures, missing_library
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.stores.foreign import POINTER
from pytest_mlperf.suite.libraries import declared_libraries, extras
from tests import forked
from tests.cli.lab import ROOT, Lab
from tests.cli.text import Say, differing, widest

HERE = Machine(cpu={"cpu": "Testium 9000", "cores": 4.0, "governor": "performance"})


@pytest.fixture(autouse=True)
def _own_leases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))


ALL = [
    r"tools",
    r"  ok        Python   3\.\d+\.\d+ on Linux \S+",
    r"  ok        pytest   \S+, plugin pytest-mlperf \S+ is active",
    r"  ok        LoadGen  \S+ \(library \S+\), the test run was VALID",
    r"machine",
    r"  (ok|note) +GPUs +.+",
    r"  (ok|note) +CPU +.+ cores, governor .+",
    r"  (ok|note) +load +(quiet|busy|unknown).*",
    r"  (ok|note) +memory +\S+ GiB free of \S+ GiB",
    r"  (ok|note) +runs folder +\.mlperf, \S+ GiB free",
    r"  ok +leases +\S+( can be written)?",
    r"engines",
    r"  ok +null +usable",
    r"  optional +vllm +needs vllm, which is not installed",
    r"libraries",
]
SHAPE = [
    r"machine",
    r"  ok +checked +Python, pytest, LoadGen, .*",
    r"  (ok|note) +GPUs +.+",
    r"suites, and their baselines for this machine",
    r"  suites/first\.mlperf\.toml: first, quick",
    r"    state   case                    performance      accuracy",
    r"    ready   Offline-Acme-fp32-cpu   [567] runs on 1 day  yes",
    r"    absent  Offline-Acme-fp32-H200  none             yes",
    r"    - H200 is not on this machine",
    r"1 baseline: false alarms at most 1 %; an ok is provisional: it holds if",
    r"day-to-day variation is below .* %; to measure it, run on 3 more days with",
    r"--mlperf-update=missing",
    r"",
    r"1 of 2 cases can run here: accelerator not here 1",
    r"next: pytest suites --mlperf-update=missing",
]
"""Lines in their order; others may stand between them."""


def test_it_reads_as_designed(own_lab: Lab, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_mlperf.cli.doctor.requirements.import_failures", lambda _: {})
    own_lab.of_one_session()
    for words, shape in ((("--all",), [*ALL, *SHAPE[3:]]), ((), SHAPE)):
        output = say.ends(0, "doctor", *words)
        left = output.splitlines()
        for pattern in shape:
            while left and not re.fullmatch(pattern, left[0]):
                left.pop(0)
            assert left, f"no line {pattern!r} in its place in:\n{output}"
            left.pop(0)
        assert widest(output) <= 80
        assert "missing" not in output.replace("--mlperf-update=missing", "")
    assert len(output.splitlines()) <= MAX_LINES


def test_a_page_of_many_cases_is_cut_before_its_verdict() -> None:
    cases = tuple(replace(READY, case=f"case {number}") for number in range(40))
    whole = list(lines([OK], [SuiteState(path=Path("x"), cases=cases)], (), 0))
    page = shorten_page(whole)
    assert (len(page), page[-3:], page[:10]) == (MAX_LINES, whole[-3:], whole[:10])
    assert f"  ... {len(whole) - MAX_LINES + 1} more lines: pytest-mlperf doctor --all" in page
    assert shorten_page(whole[:MAX_LINES]) == whole[:MAX_LINES]
    long = ["a text", *["      of many lines"] * MAX_LINES, "", "verdict"]
    assert shorten_page(["first", *long])[0] == "first"
    assert shorten_page(["first", *long])[1].startswith("  ... ")


@pytest.mark.process
def test_what_is_damaged_or_switched_off_is_found(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LoadGen's library is damaged, which its child finds; the plugin is off; a suite is wrong."""
    forked.use_no(monkeypatch)
    (here / "shadow").mkdir()
    (here / "shadow" / "mlperf_loadgen.py").write_text("raise ImportError('bad ELF header')")
    (here / "pytest.ini").write_text("[pytest]\naddopts = -p no:mlperf\n")
    (here / "bad.mlperf.toml").write_text("schema = 2\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here / "shadow"), str(ROOT)]))
    monkeypatch.setattr("pytest_mlperf.cli.doctor.requirements.import_failures", lambda _: {})
    document = json.loads(say.ends(2, "doctor", "--json"))
    checks = {check["name"]: check for check in document["checks"]}
    assert [checks[name]["state"] for name in ("LoadGen", "pytest")] == ["broken", "broken"]
    assert "bad ELF header" in checks["LoadGen"]["text"]
    assert checks["LoadGen"]["do"] == "pip install --force-reinstall mlcommons-loadgen"
    assert "is installed, but not active in this folder" in checks["pytest"]["text"]
    assert "-p no:mlperf" in checks["pytest"]["do"]
    (suite,) = document["suites"]
    assert (document["exit_code"], suite["path"]) == (2, "bad.mlperf.toml")
    assert suite["error"].startswith("bad.mlperf.toml:1: ")


def test_the_last_line_is_the_command_that_helps_most() -> None:
    repair = Check(group="tools", name="LoadGen", state="broken", text="x", do="pip install it")
    with_baseline = SuiteState(path=Path("x"), cases=(replace(READY, performance="8 runs"),))
    rows: list[tuple[Check, list[SuiteState], str, str]] = [
        (OK, [], "this machine can measure; no suites found", "pytest-mlperf init"),
        (repair, [state("ready")], "nothing can be measured: LoadGen broken", "pip install it"),
        (
            OK,
            [state("ready"), state(error="x")],
            "",
            "fix the lines named above, then run: pytest-mlperf doctor",
        ),
        (
            OK,
            [state("absent", "missing")],
            "0 of 2 cases can run here: accelerator not here 1, model, data or library missing 1",
            "provide what is missing above, or name other suites",
        ),
        (OK, [state("ready")], "", "pytest 'suites/a b' --mlperf-update=missing"),
        (OK, [with_baseline], "1 of 1 case can run here", "pytest 'suites/a b'"),
    ]
    for check, suites, summary, command in rows:
        *printed_lines, last = lines(
            [check], suites, [Path("suites/a b")], exit_code([check], suites)
        )
        assert last == f"next: {command}"
        assert not summary or " ".join(printed_lines[printed_lines.index("") + 1 :]) == summary


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


def state_of(
    folder: Path,
    *,
    use: str = "null",
    model: bytes | None = None,
    workload: str = "",
    accelerators: str = '["cpu"]',
    options: str = "",
    failures: Mapping[str, str] | None = None,
) -> CaseState:
    """Return the state of the first case of a suite; a wrong suite is a defect with its text.

    Args:
        model: Bytes of a model for onnxruntime.
    """
    path = folder / "a.mlperf.toml"
    if model is not None:
        (folder / "m.onnx").write_bytes(model)
        use, workload = "onnxruntime", f'model = "m.onnx"\n{workload}'
    text = SUITE.format(workload=workload, use=use, accelerators=accelerators, options=options)
    path.write_text(text, "utf-8")
    report = suite_state(path, HERE, folder / "baselines", failures or {})
    return report.cases[0] if report.cases else replace(READY, case="defect", reason=report.error)


def differing_states(folder: Path, rows: Iterable[tuple[dict[str, Any], str, str]]) -> list[object]:
    """Return the suites whose state or reason, to its "…", is another one."""
    failures: list[object] = []
    for changes, expected, reason in rows:
        case_state = state_of(folder, **changes)
        state = "defect" if case_state.case == "defect" else case_state.state
        text = reason.replace("SUITE", str(folder / "a.mlperf.toml")).replace("DIR", str(folder))
        is_alike = (
            case_state.reason.startswith(text[:-1])
            if text[-1:] == "…"
            else case_state.reason == text
        )
        if state != expected or not is_alike:
            failures.append((changes, state, case_state.reason))
    return failures


IMAGENET = 'dataset = { use = "imagenet", path = "." }'
ONNX = b"bytes of a model"
LACKS: list[tuple[dict[str, Any], str, str]] = [
    ({"accelerators": '["8xH200"]'}, "absent", "8xH200 is not on this machine"),
    (
        {"workload": 'model = "${MODELS_OF_NOBODY}/m"'},
        "missing",
        "SUITE:5: ${MODELS_OF_NOBODY} is not set; set it so that…",
    ),
    (
        {"workload": 'dataset = { use = "synthetic", path = "gone" }'},
        "missing",
        "SUITE:5: the dataset gone is not here (looked at …",
    ),
    ({"workload": IMAGENET}, "missing", "SUITE:5: /…"),
    (
        {"model": ONNX, "options": 'threads = 1\ntask = "anwser"'},
        "defect",
        "SUITE:12: engines[0].options.task: engine onnxruntime: task = 'anwser' is not one of "
        "classify, answer, detect, yolo, segment, tensor",
    ),
    (
        {"model": ONNX, "options": 'batch_size = "8"'},
        "defect",
        "SUITE:11: engines[0].options.batch_size: batch_size is '8'; a whole number is needed",
    ),
    (
        {"options": "latency = 1"},
        "defect",
        "SUITE:10: engines[0].options.latency: engine 'null' has no option 'latency'…",
    ),
]


def test_a_case_that_lacks_something_says_what(tmp_path: Path) -> None:
    assert state_of(tmp_path) == replace(READY, case="Offline-null-fp32-cpu")
    assert differing_states(tmp_path, LACKS) == []
    workload = 'model = "${NO_A}/m"\ndataset = { use = "synthetic", path = "${NO_B}/d" }'
    case_state = state_of(tmp_path, workload=workload)
    assert re.findall(r"\$\{(\w+)\} is not set", case_state.reason) == ["NO_A", "NO_B"]
    case_state = state_of(tmp_path, workload=IMAGENET, failures={"PIL": "bad ELF"})
    broken = (
        "data set imagenet needs PIL, which cannot be imported: bad ELF: pip install "
        "'pytest-mlperf[onnx]'"
    )
    assert broken in case_state.reason


ABSENT = "DmlExecutionProvider"
"""Of another operating system."""
UNREADY: list[tuple[dict[str, Any], str, str]] = [
    ({"model": ONNX, "options": 'providers = ["cpu"]'}, "ready", ""),
    ({"model": b""}, "missing", "SUITE:5: DIR/m.onnx is empty (0 bytes); download it again"),
    (
        {"model": POINTER + b"\noid sha256:12\nsize 7\n"},
        "missing",
        "SUITE:5: DIR/m.onnx is a Git LFS pointer, not the file itself; run: git lfs pull",
    ),
    (
        {"model": ONNX, "workload": '[workload.scorer]\nuse = "top1"\ndtype = "float16"'},
        "broken",
        "SUITE:8: scorer top1: dtype = 'float16' is not one of float32, int32, …",
    ),
    (
        {"model": ONNX, "workload": 'dataset = { use = "synthetic", path = "m.onx" }'},
        "missing",
        "SUITE:6: the dataset m.onx is not here (looked at DIR/m.onx); did you mean m.onnx?",
    ),
]


@pytest.mark.process
def test_what_only_the_library_knows_is_asked_in_a_child(tmp_path: Path) -> None:
    assert differing_states(tmp_path, UNREADY) == []
    onnxruntime = pytest.importorskip("onnxruntime")
    absent: dict[str, Any] = {"model": ONNX, "options": f'providers = ["{ABSENT}"]'}
    rows = [
        (
            absent,
            "missing",
            f"SUITE:11: engine onnxruntime: provider '{ABSENT}' is not installed; installed: "
            f"{', '.join(onnxruntime.get_available_providers())}. Try: a build of onnxruntime "
            f"with {ABSENT}",
        ),
        ({**absent, "accelerators": '["H200"]'}, "absent", "H200 is not on this machine"),
        (
            {"model": ONNX, "options": 'providers = ["Cudda"]'},
            "broken",
            "SUITE:11: engine onnxruntime: providers = 'Cudda' is unknown to onnxruntime; …",
        ),
    ]
    assert differing_states(tmp_path, rows) == []


@pytest.mark.process
def test_a_library_that_cannot_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime alone brings no TensorRT; engines that have nothing to try are not asked."""
    failure = "checking the engine's library failed: KeyError: 'given'"
    assert requirements._run_check("{}") == ("", failure)
    assert requirements.library_trouble("null") == ""
    with monkeypatch.context() as patch:
        patch.setattr("pytest_mlperf.cli.doctor.requirements.IMPORT_TIMEOUT_SECONDS", 0.001)
        slow = "checking the engine's library takes longer than 0 s"
        assert requirements._run_check('{"slow": 1}') == ("", slow)
    onnxruntime = pytest.importorskip("onnxruntime")
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has TensorRT")
    trouble = requirements.library_trouble("tensorrt")
    assert "'TensorrtExecutionProvider' is not installed" in trouble


def test_all_files_of_data_and_scorer_are_told_at_once(tmp_path: Path) -> None:
    workload = (
        '[workload.dataset]\nuse = "coco_captions"\npath = "."\n[workload.scorer]\n'
        'use = "clip_fid"\nclip = "/no/clip"\ninception = "/no/i.pth"\nstatistics = "/no/s.npz"'
    )
    case_state = state_of(tmp_path, model=ONNX, workload=workload)
    data, scorer, *_ = case_state.reason.splitlines()
    for text in ("has neither captions/captions.tsv", "latents: has neither latents.pt"):
        assert text in data
    for text in ("/no/clip: this folder does", "/no/i.pth: this file", "/no/s.npz: this file"):
        assert text in scorer


def test_only_cases_of_the_accelerators_that_are_named_are_shown() -> None:
    gpu = replace(READY, accelerator="H200", state="absent")
    several = replace(READY, accelerator="8xH200")
    both = SuiteState(path=Path("both"), cases=(READY, gpu, several))
    neither = SuiteState(path=Path("cpu only"), cases=(READY,))
    defective = SuiteState(path=Path("defective"), error="x")
    suites = [both, neither, defective]
    mixed = replace(both, cases=(READY, several))
    assert limit_to_accelerators(suites, []) == suites
    assert limit_to_accelerators(suites, ["H200"]) == [replace(both, cases=(gpu,)), defective]
    assert limit_to_accelerators(suites, ["8xH200", "cpu"]) == [mixed, neither, defective]
    assert exit_code([OK], limit_to_accelerators([both], ["H200"])) == 3
    with pytest.raises(MlperfError, match="no case runs on 'H100'; the suites use: cpu, H200, "):
        limit_to_accelerators(suites, ["H100"])


def test_suites_and_accelerators_may_be_named(
    lab: Lab, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_mlperf.cli.doctor.run_checks", lambda *_: ([OK], {}))
    output = say.ends(0, "doctor", "--accelerator", "cpu")
    assert "1 of 1 case can run here" in output
    assert "H200" not in output[output.index("suites, and") :]
    unknown = "pytest-mlperf: no case runs on 'TPU'; the suites use: cpu, H200"
    absent = "gone.mlperf.toml does not exist; name a suite file or a folder of suites"
    rows = [
        (("doctor", "--accelerator", "TPU"), 2, (unknown,)),
        (("doctor", "gone.mlperf.toml"), 2, (f"pytest-mlperf: {absent}",)),
    ]
    assert differing(say, rows) == []


def test_baselines_damaged_or_of_another_machine_are_told(tmp_path: Path, lab: Lab) -> None:
    file = tmp_path / "baselines/cpu/quick/first/Offline.null.fp32.json"
    file.parent.mkdir(parents=True)
    file.write_text("{", "utf-8")
    case_state = state_of(tmp_path)
    assert (case_state.state, case_state.performance) == ("broken", "damaged")
    assert "is not JSON" in case_state.reason
    suite = suite_state(lab.path / "suites/first.mlperf.toml", HERE, None, {})
    assert [case.performance for case in suite.cases] == ["other machine", "none"]
    assert [case.accuracy for case in suite.cases] == ["yes", "yes"], "it holds on every machine"


H200 = Machine(cpu={}, gpus=({"uuid": "GPU-0", "gpu": "NVIDIA H200"},))


def test_power_limits_that_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root on a host, as root in a plain container, and one that a killed process left."""
    (tmp_path / "self").mkdir()
    for mask, text in (
        ("000001ffffffffff", "can be set"),
        ("00000000a80425fb", "cannot be set without root"),
    ):
        (tmp_path / "self/status").write_text(f"Name:\tpython\nCapEff:\t{mask}\n")
        (check,) = _machine.power_limits(H200, tmp_path)
        assert (check.state, text in check.text) == ("ok", True)
        assert bool(check.do) == ("cannot" in text)
    assert list(_machine.power_limits(HERE, tmp_path)) == []
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    note = {"uuid": "GPU-0", "was_mw": 700_000, "enforced_mw": 700_000, "set_mw": 500_000}
    (tmp_path / "pytest-mlperf").mkdir()
    (tmp_path / "pytest-mlperf/GPU-0.power-limit.json").write_text(json.dumps(note))
    (check,) = _machine.power_limits(H200)
    assert check.state == "note"
    assert "a case changed the power limit of GPU-0 from 700 to 500 W" in check.text


def with_gpus(**fields: Any) -> Machine:
    plain = ({"uuid": f"GPU-{n}", "index": n, "gpu": "NVIDIA H200", "ecc": True} for n in (0, 1))
    return Machine(**{"cpu": {}, "gpus": tuple(plain), **fields})


def busy(**seen: Any) -> Check:
    return _machine.load(Contention(window_s=1.0, cores=2, **seen))


def with_governor(name: str | None) -> Check:
    return _machine.cpu(replace(HERE, cpu={**HERE.cpu, "governor": name}))


CALM = dict.fromkeys(("waited_s", "stolen_s", "throttled_s", "memory_some_s"), 0.0)
NO_P2P = {"GPU-0": {"GPU-1": "SYS, no P2P"}, "GPU-1": {"GPU-0": "SYS, no P2P"}}
OTHER_ECC = tuple({**gpu, "ecc": not gpu["index"]} for gpu in with_gpus().gpus)
UNREAD = {"GPU-0": {"nvlinks": "no"}, "GPU-1": {"nvlinks": "no", "pstate": "never"}}
CLOCKS = "Testium 9000, 4.0 cores, governor"


def test_the_machine_is_described_with_what_is_worth_a_note() -> None:
    """GPUs as suites name them, their differences, their sensors; clocks; the current load."""
    checks = [
        _machine.gpus(replace(HERE, nvml_trouble="NVML's library is not here")),
        _machine.gpus(H200),
        _machine.gpus(with_gpus(paths=NO_P2P)),
        _machine.gpus(with_gpus(gpus=OTHER_ECC)),
        *_machine.gpu_sensors(with_gpus()),
        *_machine.gpu_sensors(with_gpus(unread=UNREAD)),
        *_machine.gpu_sensors(with_gpus(unread={"GPU-1": {"energy_j": "no"}})),
        *_machine.gpu_sensors(HERE),
        *map(with_governor, ("performance", None, "powersave", "schedutil")),
        busy(foreign_s=0.02, **CALM),
        busy(foreign_s=1.1, waited_s=None, stolen_s=0.0, others={"cc1plus": 1.05}),
        busy(**CALM),
    ]
    alone, *others = ((check.state, check.text) for check in checks)
    assert alone[0] == "note"
    assert re.fullmatch("none: NVML's library is not here.*; only cases on cpu can run", alone[1])
    assert [(state, text.partition(": clocks")[0]) for state, text in others] == [
        ("ok", "H200: NVIDIA H200"),
        ("ok", "2xH200: NVIDIA H200, SYS, no P2P"),
        (
            "note",
            "2xH200: NVIDIA H200, unknown topology; ecc is True, False on GPU 1",
        ),
        ("ok", "all readable"),
        ("ok", "not readable: nvlinks of each GPU: no; pstate of GPU 1: never"),
        ("note", "not readable: energy_j of GPU 1: no"),
        ("ok", f"{CLOCKS} performance"),
        ("ok", f"{CLOCKS} unknown"),
        ("note", f"{CLOCKS} powersave"),
        ("note", f"{CLOCKS} schedutil"),
        ("ok", "idle: other processes used 0.02 of 2 cores"),
        (
            "note",
            "busy: other processes used 1.1 of 2 cores (cc1plus 1.1); not reported: waits for "
            "a core, processor quotas, memory pressure",
        ),
        ("note", "unknown; not reported: processor use"),
    ]
    assert [bool(check.do) for check in checks[-3:]] == [False, True, False]


def test_folders_memory_and_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert _machine.space(tmp_path / "new" / "deeper").state == "ok"
    assert _machine.space(tmp_path / "file" / "below").state == "broken"
    assert _machine.leases().state == "ok"
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "linked"))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "pytest-mlperf").symlink_to(tmp_path)
    assert _machine.leases().state == "broken"
    assert re.fullmatch(r"\d+\.\d GiB free of \d+\.\d GiB", _machine.memory().text)


@pytest.mark.process
def test_loadgen_and_pytest_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = _machine.loadgen()
    assert (check.state, check.do) == ("ok", "")
    assert "the test run was VALID" in check.text
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest\n")
    check = _machine.plugin()
    assert check.state == "broken"
    assert "pytest --help fails: " in check.text


def test_libraries_are_told_with_the_extra_that_brings_them() -> None:
    """What an extension declares is read and not imported; extras are those for users."""
    assert extras()["onnx"] == ["onnx", "onnxruntime", "pillow"]
    assert not {"dev", "train"} & set(extras())
    assert declared_libraries("engines", "onnxruntime") == ("onnxruntime", "onnx")
    assert declared_libraries("engines", "null") == ()
    assert declared_libraries("datasets", "imagenet") == ("PIL",)
    assert declared_libraries("engines", "package.of_the_user:Engine") == ()
    assert missing_library("engines", "onnxruntime", {"onnxruntime": "OSError: x"}) == (
        "needs onnxruntime, which cannot be imported: OSError: x",
        "pip install 'pytest-mlperf[onnx]'",
    )
    assert missing_library("engines", "null", {}) is None


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
    assert import_failures(["raising_lib", "crashing_lib", "fine_lib", "absent_lib"]) == {
        "raising_lib": "OSError: no such symbol",
        "crashing_lib": "its import ends the process with exit code 7",
        "absent_lib": "ModuleNotFoundError: No module named 'absent_lib'",
    }
    assert "fine_lib" not in sys.modules
