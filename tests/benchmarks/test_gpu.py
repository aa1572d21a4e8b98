"""The script for machines with a GPU: its arithmetic, and a rehearsal on the fake NVML library."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import __main__ as script
from benchmarks.gpu import board, models, parts, report, sessions
from benchmarks.gpu.bundle import MACHINE, PURE, SOURCES, WHEELS, BundleError, unpacked
from benchmarks.gpu.figures import (
    CHI_SQUARE_95,
    abba,
    apart,
    sd_interval,
    spread_of,
    steps_of,
    tail_of,
)
from benchmarks.gpu.load import square
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.run import ROOT, run_part, status_of
from benchmarks.gpu.sessions import RATES, Run, components
from benchmarks.gpu.setting import SIMULATED, Answer, Setting, show
from benchmarks.gpu.simulated import ENGINES
from benchmarks.gpu.suite import TINY, TWINS, rewrite, row_of, telling
from pytest_mlperf.core.energy.readings import Reading
from tests.nvml.library import Fake, binding, build

IDLE, BUSY = 90.0, 600.0


def setting(folder: Path, *, device: str = "cuda", seconds: float = 20.0) -> Setting:
    return Setting(
        folder=str(folder),
        seconds=seconds,
        device=device,
        uuid="GPU-0",
        product="NVIDIA H200",
        memory_gib=140.0,
        accelerator="H200",
        simulated=device == "cpu",
    )


def trace(watts: list[float], hz: float = 50.0) -> list[Reading]:
    return [Reading(time_s=i / hz, value=w) for i, w in enumerate(watts)]


def test_a_tail_ends_where_power_stays_near_its_level() -> None:
    """1 s of load, then a slope of `fall_s`, then idle for 5 s."""
    for fall_s in (0.0, 0.4, 1.3):
        falls = [(i / 50 - 1) / fall_s if fall_s else math.inf for i in range(50, 350)]
        watts = [BUSY] * 50 + [max(IDLE, BUSY - (BUSY - IDLE) * fall) for fall in falls]
        tail = tail_of(trace(watts), 1.0)
        assert tail is not None
        assert tail.settled_w == IDLE
        assert tail.seconds == pytest.approx(fall_s, abs=0.03)
        assert tail.excess_j == pytest.approx((BUSY - IDLE) * fall_s / 2, abs=8)


def test_a_tail_that_is_not_over_is_unknown() -> None:
    """Power that still swings has not settled; a short trace says nothing."""
    swings = [BUSY] * 50 + [IDLE if i % 50 < 40 else 2 * IDLE for i in range(200)]

    tail = tail_of(trace(swings), 1.0)

    assert tail is not None
    assert tail.seconds is None
    assert tail_of(trace([BUSY] * 50 + [IDLE] * 60), 1.0) is None


def test_the_points_of_the_chi_square_distribution() -> None:
    """Beyond the table they are approximate."""
    chi2 = pytest.importorskip("scipy.stats").chi2
    points = {
        freedom: chi2.ppf([0.025, 0.975], freedom) for freedom in (*CHI_SQUARE_95, 11, 20, 60)
    }

    for freedom in CHI_SQUARE_95:
        assert CHI_SQUARE_95[freedom] == pytest.approx(points[freedom], rel=1e-3)
    for freedom in (11, 20, 60):
        expected = [math.sqrt(freedom / point) for point in reversed(points[freedom])]
        assert sd_interval(1.0, freedom) == pytest.approx(expected, rel=4e-3)


def test_the_interval_of_a_spread_covers_the_truth() -> None:
    """Of 2,000 sets of five normal values with 3 % spread the interval misses about 5 %."""
    numbers = random.Random(3)
    spreads = [spread_of([numbers.gauss(100, 3) for _ in range(5)]) for _ in range(2000)]
    inside = [each.low <= 0.03 <= each.high for each in spreads if each is not None]

    assert len(inside) == 2000
    assert statistics.fmean(inside) == pytest.approx(0.95, abs=0.02)
    assert spread_of([]) is spread_of([1.0]) is None
    same = spread_of([2.0, 2.0])
    assert same is not None
    assert (same.mean, same.sd, same.high) == (2.0, 0.0, 0.0)


@given(ratio=st.floats(0.5, 2), drift=st.floats(0.9, 1.1), blocks=st.integers(1, 4))
def test_a_steady_drift_leaves_a_ratio_as_it_is(ratio: float, drift: float, blocks: int) -> None:
    """off, on, on, off: whatever the drift from leg to leg, on / off is found."""
    rates = [drift**i * (ratio if i % 4 in {1, 2} else 1.0) for i in range(4 * blocks)]

    result = abba(
        off=[r for i, r in enumerate(rates) if i % 4 in {0, 3}],
        on=[r for i, r in enumerate(rates) if i % 4 in {1, 2}],
    )

    assert result.ratio == pytest.approx(ratio)
    assert result.blocks == blocks


def test_like_legs_differ_by_the_largest_pair_and_half_a_block_is_refused() -> None:
    """Square loads are half of the time."""
    assert apart([10.0, 11.0, 20.0, 20.0, 6.0, 4.0]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="not blocks of two each"):
        abba([1.0], [1.0])
    bursts = square(10.0, 0.05, 1.0)
    assert len(bursts) == 20
    assert sum(end - begin for begin, end in bursts) == pytest.approx(0.5)


def test_period_and_lag_of_a_counter_are_found() -> None:
    """Steps of 2 s, a counter that steps every 100 ms and trails, read 20 times a second."""

    def joules(t: float) -> float:
        whole, rest = divmod(max(t, 0.0), 2.0)
        return whole * (BUSY + IDLE) + BUSY * min(rest, 1.0) + IDLE * max(rest - 1.0, 0.0)

    power = trace([BUSY if i / 50 % 2.0 < 1 else IDLE for i in range(500)])
    for lag_s in (0.0, 0.1, 0.2):
        counter = [
            Reading(time_s=t, value=joules(math.floor(t * 10 + 1e-9) / 10 - lag_s))
            for t in (i / 20 + 0.003 for i in range(200))
        ]
        steps = steps_of(counter, power)
        assert steps is not None
        assert steps.period_s == pytest.approx(0.1, abs=0.002)
        assert steps.lag_s == pytest.approx(lag_s, abs=0.04)
        assert steps_of(counter[:3], power) is None


def test_models_have_the_size_of_the_published_ones() -> None:
    """ResNet-50 v1.5: parameters, and FLOP of an image as in the table of workloads; Llama's."""
    for size, parameters in models.LLAMA_PARAMETERS.items():
        about = models.LLAMA[size]
        width, layers = about["hidden_size"], about["num_hidden_layers"]
        block = 4 * width**2 + 3 * width * about["intermediate_size"] + 2 * width
        assert layers * block + 2 * about["vocab_size"] * width + width == parameters

    assert models.SDXL_UNET_PARAMETERS == 2_567_463_684
    torch = pytest.importorskip("torch")
    from pytest_mlperf.rounds.work import find_work

    with torch.device("meta"):
        resnet = models.resnet50()
        flop = models.flop(lambda: resnet(torch.empty(1, 3, 224, 224)))
    sized_work = find_work("resnet50")
    assert sized_work is not None
    assert models.parameters(resnet) == models.RESNET50_PARAMETERS == 25_557_032
    assert flop == sized_work.work.smallest


@pytest.mark.nightly
def test_the_unet_of_sdxl_is_the_published_one() -> None:
    """Parameters, and FLOP of a call and of the decoder as in the table of workloads."""
    torch = pytest.importorskip("torch")
    diffusers = pytest.importorskip("diffusers")
    from pytest_mlperf.core.roofline.work import Diffusion
    from pytest_mlperf.rounds.work import find_work

    with torch.device("meta"):
        counted = models.parameters(diffusers.UNet2DConditionModel(**models.SDXL_UNET))
    unet_work = find_work("stable-diffusion-xl")

    assert unet_work is not None
    assert isinstance(unet_work.work, Diffusion)
    assert counted == models.SDXL_UNET_PARAMETERS == 2_567_463_684
    assert models.sdxl_flop(models.SDXL_UNET, models.SDXL_VAE) == (
        unet_work.work.call_flop,
        unet_work.work.decoder_flop,
    )


def test_tiny_suites_are_rewritten_for_the_gpu(tmp_path: Path) -> None:
    """Same data and reference scores; torch on the device, Offline only, no limit on threads.

    A rehearsal runs engines that show on the simulated GPU.
    """
    for twin in TWINS:
        text = (TINY / f"{twin.name}.mlperf.toml").read_text("utf-8")
        was = tomllib.loads(text)
        real = tomllib.loads(rewrite(text, twin, setting(tmp_path), "6s"))
        (engine,) = real["engines"]
        assert engine["accelerators"] == ["H200"]
        assert engine["use"].startswith("torch")
        assert engine["options"]["device"] == "cuda"
        assert "threads" not in engine["options"]
        assert real["scenarios"] == [{"name": "Offline", "min_duration": "6s"}]
        assert real["workload"]["reference"] == was["workload"]["reference"]
        assert real["workload"]["dataset"] == was["workload"]["dataset"]

        rehearsed = tomllib.loads(rewrite(text, twin, setting(tmp_path, device="cpu"), "1s"))
        made = rehearsed["engines"][0]
        assert made["use"] == f"benchmarks.gpu.simulated:{ENGINES[engine['use']].__name__}"
        assert made["name"] == engine.get("name", engine["use"])
        assert "device" not in made["options"]


VERDICTS = {"accuracy": ("ok", "auc 86"), "performance": ("NO BASELINE", "samples/s")}


def test_a_red_test_or_a_missing_one_is_a_row_that_failed() -> None:
    """A session without energy says unknown."""
    for changed, failures in (
        ({}, []),
        ({"performance": ("INVALID", "shared GPU")}, ["performance INVALID shared GPU"]),
        ({"accuracy": ("GATE FAIL", "auc 50")}, ["accuracy GATE FAIL auc 50"]),
        ({"accuracy": None}, ["no accuracy test ran"]),
    ):
        cases = [
            {"verdict": {"kind": kind, "outcome": both[0], "headline": both[1], "runs": []}}
            for kind, both in {**VERDICTS, **changed}.items()
            if both is not None
        ]
        assert row_of("dlrm-v2", {"cases": cases}, 3.0)[1]["failures"] == failures
    assert status_of([]) == "ok"
    assert status_of(["bert: no"]) == "failed: bert: no"
    assert status_of(["bert: no", "a", "b"]) == "failed: bert: no (and 2 more)"
    verdict = {"kind": "performance", "outcome": "INVALID", "headline": "because", "runs": []}

    row, values = row_of("bert", {"cases": [{"verdict": verdict}]}, 3.0)
    assert "INVALID because" in row
    assert "0" not in row
    assert values["metrics"] == {}


def test_the_line_that_tells_is_the_error_not_the_last() -> None:
    """Numbers are printed with three digits, and a cell cannot break a table."""
    pytest_output = """ERROR: usage: __main__.py [options] [file_or_dir]
    __main__.py: error: unrecognized arguments: --mlperf-accelerator=H100
      inifile: None
      rootdir: /somewhere
    """
    assert telling(pytest_output) == (
        "__main__.py: error: unrecognized arguments: --mlperf-accelerator=H100"
    )
    assert telling("") == "no output"
    texts = ["unknown", "0.0123", "12.3", "123", "12,345"]
    table = ["| a | b |", "| --- | --- |", "| x\\|y | 1 2 |"]
    assert [show(value) for value in (None, 0.01234, 12.34, 123.4, 12345.0)] == texts
    assert list(report.table(("a", "b"), [("x|y", "1\n2")])) == table


def test_variance_of_runs_and_sessions_is_estimated() -> None:
    """Runs vary by 1 %, sessions by 3 %, first runs are 5 % slow: over 400 sessions of 4."""
    numbers = random.Random(7)
    runs = [
        Run(session=session, position=position, rates={RATES[0]: 100 * math.exp(level + noise)})
        for session in range(400)
        for level in [numbers.gauss(0, 0.03)]
        for position in range(1, 5)
        for noise in [numbers.gauss(-0.05 if position == 1 else 0.0, 0.01)]
    ]

    components_found = components(runs, RATES[0])
    later = components([run for run in runs if run.position > 1], RATES[0])

    assert components_found["first"] == pytest.approx(-0.05, abs=0.003)
    assert later["run"] == pytest.approx(0.01, rel=0.1)
    assert later["session"] == pytest.approx(0.03, rel=0.1)
    assert later["share"] == pytest.approx(0.9, abs=0.03)
    single = components(runs[:4], RATES[0])
    assert single["run"] is not None
    assert single["session"] is single["share"] is single["first"] is None
    assert set(components(runs[:1], RATES[0]).values()) == {None}


def test_sessions_without_time_for_one_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_session", lambda *_: iter(()))

    (answer,) = sessions.part(setting(tmp_path, seconds=3.0))

    assert answer.failures == ["a run takes 0 s: 3 s are too few for a session"]


HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"


def wheel(folder: Path, name: str, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", text)
    return path


def needs(*roots: str) -> set[str]:
    """Return what distributions need that are installed here, and what these need, and so on."""
    seen, left = set[str](), [Requirement(root) for root in roots]
    done = set[str]()
    while left:
        requirement = left.pop()
        if str(requirement) in done:
            continue
        done.add(str(requirement))
        seen.add(canonicalize_name(requirement.name))
        extras = requirement.extras or {""}
        for dependency in map(Requirement, metadata.requires(requirement.name) or ()):
            if dependency.marker is None or any(
                dependency.marker.evaluate({"extra": e}) for e in extras
            ):
                left.append(dependency)
    return seen


def test_a_bundle_has_all_that_torch_and_transformers_do_not_bring() -> None:
    pytest.importorskip("diffusers")
    bring = needs("torch", "transformers", "numpy")

    missing = needs("pytest-mlperf[diffusion]") - bring - {"pytest-mlperf"}

    assert missing <= {*WHEELS, *SOURCES}


@pytest.mark.skipif(platform.machine() != MACHINE, reason="wheels are for another machine")
def test_a_bundle_is_unpacked_for_this_python_and_gone_afterwards(tmp_path: Path) -> None:
    wheel(tmp_path / PURE, "pure")
    compiled = wheel(tmp_path / HERE, "compiled")
    wheel(tmp_path / "cp27", "ancient")

    with unpacked(tmp_path) as site:
        assert sorted(each.name for each in site.iterdir()) == ["compiled", "pure"]
    assert not site.exists()

    compiled.write_bytes(compiled.read_bytes()[:40])
    with pytest.raises(BundleError, match=r"compiled-1-py3-none-any\.whl cannot be unpacked"):
        unpacked(tmp_path).__enter__()


def test_a_bundle_for_another_python_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path / "cp27", "ancient")

    with pytest.raises(BundleError, match=r"has no wheels for CPython .*: it has cp27, .*--python"):
        unpacked(tmp_path).__enter__()
    assert script.main(["--bundle", str(tmp_path / "nowhere")]) == 2
    assert "it has none at all" in capsys.readouterr().err


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """An idle H200 of the fake library, for this test's child processes."""
    fake_gpu = Fake(tmp_path)
    fake_gpu.write("device", f"wave const {IDLE:g}")
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"):
        monkeypatch.setenv(name, fake_gpu.environment[name])
    return fake_gpu


def test_a_part_gets_the_rest_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its process took 7 s to start, that much less."""
    seconds_left: list[float] = []

    def counted(setting: Setting) -> Iterator[Answer]:
        seconds_left.append(setting.seconds)
        yield Answer()

    monkeypatch.setattr(parts, "die_with_parent", lambda _parent: None)
    monkeypatch.setattr("benchmarks.gpu.sessions.part", counted)
    monkeypatch.setattr(sys, "stdin", io.StringIO(setting(tmp_path).to_json()))
    monkeypatch.setattr(sys, "argv", ["", "sessions", "1", str(time.monotonic() - 7.0)])

    parts.main()

    assert seconds_left == [pytest.approx(13.0, abs=1.0)]


def test_a_part_sees_the_sampled_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Mock(side_effect=FileNotFoundError)
    monkeypatch.setattr(subprocess, "Popen", start)

    with pytest.raises(FileNotFoundError):
        run_part(PARTS[0], setting(tmp_path / "part"))

    assert start.call_args.kwargs["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-0"


@pytest.mark.process
def test_the_future_power_of_a_simulated_gpu_is_set_without_a_jump(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "_kept", [fake])
    board.simulate()
    with fake.here():
        nvml = binding()
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        energy_before = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        board.foresee(setting(tmp_path, device="cpu"), [(fake.t0 + 1000, board.BUSY_W)])
        after = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        nvml.nvmlShutdown()

    assert 0 <= after - energy_before < 1000 * board.IDLE_W * 5  # mJ that 5 s of idling take


@pytest.mark.process
@pytest.mark.usefixtures("fake")
def test_a_part_that_breaks_says_why(tmp_path: Path) -> None:
    """Its process ends with a sentence; nothing is left of it."""
    wrong = dataclasses.replace(setting(tmp_path / "part", device="cpu"), uuid="GPU-9")

    part_result = run_part(PARTS[0], wrong)

    assert part_result["status"].startswith("failed: ")
    assert "GPU-9" in part_result["status"]
    assert "(exit status 1)" in part_result["status"]


@pytest.mark.process
def test_no_gpu_is_one_sentence(tmp_path: Path) -> None:
    """Where NVML lists none the script names --fake, and writes nothing."""
    build()
    nothing = tmp_path / "scenario"
    nothing.write_text("fail nvmlInit* 9\n")
    environment = {**Fake(tmp_path).environment, "FAKE_NVML_SCENARIO": str(nothing)}

    done = run("--out", str(tmp_path / "out"), environment=environment)

    assert done.returncode == 2
    assert done.stderr == (
        "NVML lists no GPU here: run this on a machine with one, or rehearse it with --fake "
        "(NVIDIA's kernel driver is not loaded; load it: sudo modprobe nvidia)\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.quiet
@pytest.mark.process
def test_a_rehearsal_writes_both_files(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    build()

    done = run(
        *("--fake", "--minutes", "0.35", "--only", "machine", "spread", "--out", str(tmp_path)),
        environment=dict(os.environ),
    )

    assert done.stdout.startswith(SIMULATED), done.stdout + done.stderr
    (document,), (page,) = tmp_path.glob("*.json"), tmp_path.glob("*.md")
    document_written, text = json.loads(document.read_text("utf-8")), page.read_text("utf-8")
    statuses = {name: part["status"] for name, part in document_written["parts"].items()}
    assert list(statuses) == [part.name for part in PARTS]
    assert statuses.pop("machine") == statuses.pop("spread") == "ok", done.stdout
    assert set(statuses.values()) == {"not asked for"}
    assert document_written["simulated"] == SIMULATED
    assert SIMULATED in "\n".join(text.splitlines()[:4])
    assert all(f"## {part.title}" in text for part in PARTS)
    assert all(label in text for label in document_written["labels"])
    assert document_written["parts"]["machine"]["answer"]["values"]["own_pid_listed"] is False
    assert "| power_w | field POWER_INSTANT |" in text


def run(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
