"""Test that each library reads CUDA_VISIBLE_DEVICES as the table of the engines states.

GPU-0 and GPU-1 are here, the second one divided: MIG-1-0 is its instance of number 0. A name is
understood if the library uses the GPU that it is on.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_mlperf.adapters.engines.serving import Server
from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.builtin.synthetic import SyntheticDataset
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.hardware.devices import (
    TABLE,
    VARIABLE,
    Form,
    check_devices,
    form_of,
    rejected_names,
)
from pytest_mlperf.run.worker.worker import built_engine
from tests.contracts import trees, wheels
from tests.contracts.signatures import Source
from tests.contracts.vllm_table import order, version
from tests.run.harness import spec as job

ON: Mapping[str, int] = {"0": 0, "1": 1, "GPU-0": 0, "GPU-1": 1, "MIG-1-0": 1}
"""The GPU that each name means to CUDA."""

FAILS = None
NUMBERS_ALONE = {"0": 0, "1": 1, "GPU-0": FAILS, "GPU-1": FAILS, "MIG-1-0": FAILS}
BY_NVML = {"0": 0, "1": 1, "GPU-0": 0, "GPU-1": 1, "MIG-1-0": 0}

VLLM: Mapping[str, Mapping[str, int | None]] = {
    **dict.fromkeys(("0.20.0", "0.21.0", "0.22.0", "0.23.0"), NUMBERS_ALONE),
    **dict.fromkeys(("0.24.0", "0.25.0", "0.26.0", "0.33.0"), BY_NVML),
}
"""What `Platform.device_id_to_physical_device_id` of a version gave for each name.

NVML's own documentation of nvmlDeviceGetIndex: of a MIG handle, the number within its GPU.
"""


def test_vllm_gets_the_variable_of_the_gpu() -> None:
    refused = {
        (at, name): form_of(name) in rejected_names("vllm", at).refused
        for at in VLLM
        for name in ON
    }
    assert refused == {(at, name): VLLM[at][name] != ON[name] for at in VLLM for name in ON}


def test_numbers_are_understood_by_all_and_a_version_that_is_not_known_takes_the_newest_row() -> (
    None
):
    """Whole GPUs go by number wherever numbers are certain, whatever version another Python has."""
    assert TABLE
    for library, rows in TABLE.items():
        assert not any("number" in row.refused for row in rows)
        assert all(set(row.refused) <= set(get_args(Form)) for row in rows)
        for release in (None, "99.0", "0.0.0", "0.1.dev17+g3f2a1b"):
            assert rejected_names(library, release) is rows[-1], (library, release)
        assert [row.since for row in rows] == sorted({row.since for row in rows})


def converted(text: str) -> list[str]:
    """Return the functions of a module that make numbers of the variable's entries, unlooked at."""
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        node.name
        for node in functions
        if VARIABLE in (inside := ast.unparse(node))
        and re.search(r"\bint\(|\bmap\(int\b", inside)
        and not re.search(r"\.is(digit|decimal|numeric)\(", inside)
    ]


def test_a_function_that_dies_of_a_uuid_is_seen() -> None:
    head = f"def index_of(place):\n    entries = environ['{VARIABLE}'].split(',')\n    return "
    for result, dies in (
        ("int(entries[place])", True),
        ("list(map(int, entries))[place]", True),
        ("int(entries[place]) if entries[place].isdigit() else place", False),
        ("place", False),
    ):
        assert converted(head + result) == ["index_of"] * dies, result
        assert converted((head + result).replace(VARIABLE, "CUDA_PATHS")) == []


@pytest.mark.skipif(trees.VARIABLE not in os.environ, reason=f"{trees.VARIABLE} names no tree")
def test_a_real_tensorrt_llm_dies_of_no_name() -> None:
    with Source.open(os.environ[trees.VARIABLE]) as source:
        texts = {file: source.text(file) for file in source.files("tensorrt_llm")}

    assert texts
    assert {file: dying for file, text in texts.items() if (dying := converted(text))} == {}


@pytest.mark.slow
def test_torch_reads_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    for listed, seen in (
        ("3,1", [3, 1]),
        ("GPU-1,GPU-0", ["GPU-1", "GPU-0"]),
        ("MIG-1-0", ["MIG-1-0"]),
    ):
        monkeypatch.setenv(VARIABLE, listed)
        assert torch.cuda._parse_visible_devices() == seen
        assert form_of(listed) not in rejected_names("torch", torch.__version__).refused


def test_onnxruntime_leaves_the_variable_to_cuda() -> None:
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("onnxruntime is not installed")
    files = [file for file in Path(spec.origin).parent.glob("capi/*") if file.is_file()]

    assert any(".so" in file.name for file in files)
    assert not [file.name for file in files if VARIABLE.encode() in file.read_bytes()]
    assert not rejected_names("onnxruntime", None).refused


def install(folder: Path, library: str, at: str) -> None:
    about = folder / f"{library}-{at}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: {at}\n")


def test_names_that_would_be_mistaken_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row, (library, at, listed, expected) in enumerate((
        ("vllm", "0.23.0", "3,1", None),
        ("vllm", "0.23.0", "1,GPU-8932",
         "GPU-8932, and vllm 0.23.0 accepts only numbers; install vLLM 0.24 or newer"),
        ("vllm", "0.23.0rc1", "GPU-8932", "GPU-8932, and vllm 0.23.0rc1 accepts only numbers"),
        ("vllm", "0.22.1", "MIG-41b3", "MIG-41b3, and vllm 0.22.1 accepts only numbers, and a MIG"),
        ("vllm", "0.24.0", "GPU-8932,GPU-1", None),
        ("vllm", "0.24.0", " MIG-41b3", "MIG-41b3, and vllm 0.24.0 takes the number of a MIG"),
        ("tensorrt_llm", "1.2.1", "MIG-41b3", None),
        ("unheard_of", "0.1", "MIG-41b3", None),
        ("vllm_of_nobody", None, "MIG-41b3", None),
        ("torch", None, "MIG-41b3", None),
        ("vllm", None, None, None),
        ("vllm", None, "MIG-41b3", "MIG-41b3, and vllm (version not known) takes the number of a"),
    )):  # fmt: skip
        with monkeypatch.context() as patch:
            if at is not None:
                (tmp_path / str(row)).mkdir()
                patch.syspath_prepend(tmp_path / str(row))
                install(tmp_path / str(row), library, at)
            error = ""
            try:
                check_devices(["json", library], {VARIABLE: listed} if listed else {})
            except RunError as refusal:
                error = str(refusal)
        start = f"CUDA_VISIBLE_DEVICES has {expected}" if expected else ""
        assert error.startswith(start), (library, at, listed)
        assert bool(error) is bool(expected)
        assert "\n" not in error


class ThroughVllm(NullEngine):
    """A user-defined engine."""

    libraries = ("vllm",)


def test_every_engine_and_server_is_checked_before_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "vllm", "0.23.0")
    spec = job(tmp_path, engine=f"{__name__}:ThroughVllm")
    monkeypatch.setenv(VARIABLE, "1")

    assert isinstance(built_engine(spec, SyntheticDataset()), ThroughVllm)
    monkeypatch.setenv(VARIABLE, "MIG-41b3")
    with pytest.raises(RunError, match=r"vllm 0\.23\.0 accepts only numbers"):
        built_engine(spec, SyntheticDataset())
    # A server is checked before it starts.
    monkeypatch.setattr("pytest_mlperf.adapters.engines.serving.find_program", str)
    options: dict[str, Any] = {"engine": "openai", "model": None, "health": "/health"}
    options |= {"start_timeout_s": 1.0, "environment": {}}
    for command in (["/bin/vllm", "serve"], [sys.executable, "-m", "vllm.entrypoints.cli.main"]):
        server = Server([*command, "--port", "{port}"], **options)
        with pytest.raises(RunError, match="CUDA_VISIBLE_DEVICES has MIG-41b3, and vllm"), server:
            pass


def test_a_real_vllm_reads_the_variable_as_the_table_says() -> None:
    """Also a newer one: once it asks NVML for the GPU of an instance, the table has a row more."""
    cuda = "vllm/platforms/cuda.py"
    with Source.open(wheels.named()) as source:
        at, text = version(source), source.text(cuda)
        methods = source.attributes(cuda, "NvmlCudaPlatform")
    row = rejected_names("vllm", at)

    assert ("GPU UUID" in row.refused) is (order(at) < (0, 24))
    assert ("device_control_id_to_physical_device_id" in methods) is (order(at) >= (0, 24))
    assert "MIG UUID" in row.refused
    assert "DeviceHandleFromMigDeviceHandle" not in text
