"""A whole session: the tiny ResNet-50 on a server that the suite starts, judged as any engine."""

from __future__ import annotations

import json

import psutil
import pytest

from pytest_mlperf.datasets.imagenet import ImageNetDataset
from tests.conftest import LEAN
from tests.engines.onnxruntime.recorder import answers
from tests.engines.triton.harness import ROOT, models, needs_mlserver
from tests.plugin.project import Project, case, last_line

pytest.importorskip("tritonclient.grpc")
pytest.importorskip("onnxruntime")

pytestmark = needs_mlserver

TINY = ROOT / "suites/tiny/resnet50"

IMAGES = 100

SCENARIO = """
[[scenarios]]
name = "Offline"
min_duration = "500ms"

"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project with the tiny suite on MLServer, over gRPC."""
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{LEAN} -omlperf_control=off")
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(pytester.path / "leases"))
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    folder = pytester.mkdir("served")
    options = {
        "served_model": "resnet50",
        "protocol": "grpc",
        "batch_size": 8,
        "serve": models(folder, resnet50=TINY / "resnet50-tiny.onnx"),
    }
    text = (TINY.parent / "resnet50.mlperf.toml").read_text("utf-8")
    text = text.replace("classes = 10 }", f"classes = 10, count = {IMAGES} }}")
    head, _, rest = text.replace('"resnet50/', f'"{TINY}/').partition("[[engines]]")
    engine = '[[engines]]\nuse = "triton"\nprecision = "fp32"\naccelerators = ["cpu"]\n'
    given = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
    limits = rest[rest.index("[limits]") :]
    pytester.mkdir("baselines")
    suites = pytester.mkdir("suites")
    (suites / "tiny.mlperf.toml").write_text(
        f"{head}{engine}[engines.options]\n{given}{SCENARIO}{limits}", "utf-8"
    )
    return Project(pytester)


def test_the_tiny_resnet_is_measured_and_scored_on_a_server(project: Project) -> None:
    result = project.run_process(
        "suites", "--mlperf-fail-on=skips", "--mlperf-update=missing", "-omlperf_baseline_runs=1"
    )

    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    assert last_line(result) == "2 recorded"
    score = project.cases()["accuracy"].verdict.metrics[0].now
    assert score == pytest.approx(right(), abs=1e-6)
    facts = project.recorded(case(workload="tiny-resnet50", engine="triton")).fingerprint
    assert facts["engine.server"] == "mlserver"
    served = str(project.path / "served")
    said = {name: value for name, value in facts.items() if name.startswith("engine.")}
    assert served not in str(said), "what an engine says of itself names no folder of a machine"
    alive = [
        each for each in psutil.process_iter(["cmdline"]) if served in (each.info["cmdline"] or [])
    ]
    assert psutil.wait_procs(alive, timeout=20)[1] == []


def right() -> float:
    """Return how many images in a hundred engine onnxruntime knows."""
    dataset = ImageNetDataset(
        path=str(TINY / "data/imagenet"), size=32, crop=1.0, classes=10, count=IMAGES
    )
    found = answers(
        str(TINY / "resnet50-tiny.onnx"), [dataset.input(n) for n in range(IMAGES)], batch_size=8
    )
    known = [int.from_bytes(n, "little") for n in found]
    return 100 * sum(dataset.reference(n) == known[n] for n in range(IMAGES)) / IMAGES
