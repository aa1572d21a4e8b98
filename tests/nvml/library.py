"""A library with the ABI of NVML, compiled here, that the real binding loads; see fake_nvml.c."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"
LIMIT_S = 30.0
"""A sampler that needs longer hangs."""


def binding_source() -> Path:
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def setters() -> list[str]:
    """Return every symbol the binding may call that does not merely read."""
    called = set(
        re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"', binding_source().read_text("utf-8"))
    )
    reads = (
        r"Get|Is[A-Z]|Query|OnSameBoard|Validate|nvml(Init|InitWithFlags|Shutdown|ErrorString)$"
        r"|nvmlDeviceRegisterEvents$|nvmlEventSet(Create|Free|Wait_v2)$"
    )
    return sorted(name for name in called if not re.search(reads, name))


SIMULATED = frozenset({"nvmlDeviceSetPowerManagementLimit"})
"""Setters that set something; of the others only the call shows."""


@functools.cache
def build() -> Path:
    """Compile the library once per session; return the folder to put into LD_LIBRARY_PATH.

    The folder also holds the same library without its SONAME, which can be loaded into this process
    without standing in for NVML there.
    """
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the NVML library of these tests needs Linux and a C compiler called cc")
    _REMOVED_AT_EXIT.append(tempfile.TemporaryDirectory(prefix="fake-nvml-"))
    folder = Path(_REMOVED_AT_EXIT[-1].name)
    plain = [name for name in setters() if name not in SIMULATED]
    (folder / "setters.inc").write_text("".join(f"SETTER({name})\n" for name in plain))
    options = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", f"-I{folder}"]
    for name, more in ((SONAME, [f"-Wl,-soname,{SONAME}"]), ("inside.so", [])):
        command = [*options, *more, "-o", str(folder / name), str(SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


_REMOVED_AT_EXIT: list[tempfile.TemporaryDirectory[str]] = []


@dataclass
class Fake:
    """GPUs described by a scenario, with a log of every call.

    Attributes:
        folder: Where scenario and log lie.
        t0: Monotonic time from which the scenario's times count.
    """

    folder: Path
    t0: float = field(default_factory=time.monotonic)

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario"

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    @property
    def environment(self) -> dict[str, str]:
        path = [str(build()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(path),
            "FAKE_NVML_SCENARIO": str(self.scenario),
            "FAKE_NVML_LOG": str(self.log),
        }

    def write(self, *lines: str) -> None:
        """Replace the scenario, in one step; its times count from `t0`."""
        new = self.scenario.with_suffix(".new")
        new.write_text("\n".join((f"t0 {self.t0:.9f}", *lines, "")))
        new.replace(self.scenario)

    def restart(self, *lines: str) -> None:
        self.t0 = time.monotonic()
        self.write(*lines)

    def limit_w(self, device: int = 0) -> int | None:
        """Return the power limit that was set last, watts; None if it was never set."""
        file = self.folder / f"scenario.limit.{device}"
        return int(file.read_text("ascii")) // 1000 if file.exists() else None

    def joules(self, begin_s: float, end_s: float, device: int = 0) -> float:
        """Return the exact energy between two monotonic times."""
        inside = ctypes.CDLL(str(build() / "inside.so"))
        inside.fake_joules.restype = ctypes.c_double
        inside.fake_joules.argtypes = [ctypes.c_int, ctypes.c_double, ctypes.c_double]
        with self.here():
            return float(inside.fake_joules(device, begin_s, end_s))

    def calls(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[2] for line in lines]

    @contextmanager
    def here(self) -> Iterator[None]:
        variables = {"FAKE_NVML_SCENARIO": str(self.scenario), "FAKE_NVML_LOG": str(self.log)}
        old_variables = {name: os.environ.pop(name, None) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in old_variables.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value


def binding() -> ModuleType:
    """Return nvidia-ml-py's module, a copy of our own that calls the library in this process.

    Another test's `import pynvml` is not touched, nor does anything else find the library.
    """
    spec = importlib.util.spec_from_file_location("pynvml_of_a_test", binding_source())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the binding looks itself up
    spec.loader.exec_module(module)
    module.nvmlLib = ctypes.CDLL(str(build() / "inside.so"))  # type: ignore[attr-defined]
    return module


class Child:
    """A sampler process on the fake library; nothing survives the `with` block."""

    def __init__(self, fake: Fake, *gpus: str, hz: float = 50.0, watch_s: float = 0.25) -> None:
        self._fake = fake
        self._command = [sys.executable, "-m", "pytest_mlperf.hardware.sampler"]
        for gpu in gpus or ("GPU-0",):
            self._command += ["--gpu", gpu]
        self._command += ["--hz", str(hz), "--watch-s", str(watch_s)]
        self.records: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._fake.environment,
        )
        assert self._process.stdout is not None
        self.records.append(json.loads(self._process.stdout.readline()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            rest, _ = self._process.communicate(timeout=LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
        self.records += [json.loads(line) for line in rest.splitlines()]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> dict[str, Any]:
        return self.records[0]["ready"]  # type: ignore[no-any-return]

    def of(self, kind: str) -> list[Any]:
        return [record[kind] for record in self.records if kind in record]


def scenario(*device: str, general: Sequence[str] = ()) -> list[str]:
    return [*general, "device", *device]
