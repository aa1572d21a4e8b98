"""Test that the needs of a provider's library are read without loading it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.adapters.engines.onnxruntime._session import (
    missing_dependencies,
    require_library,
)
from pytest_mlperf.core.errors import EnvironmentFault

pytestmark = pytest.mark.process

PROVIDER = "TensorrtExecutionProvider"

SOURCE = """
extern void* Provider_of_nobody(void);
extern int of_here(void), of_gone(void);
void* host;
__attribute__((constructor)) static void take(void) { host = Provider_of_nobody(); }
int all(void) { return of_here() + of_gone(); }
"""
"""As onnxruntime's providers are: what they take from it is there only once it loads them."""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a provider that needs libhere.so and libgone.so from its own folder."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a library for these tests needs Linux and a C compiler called cc")
    folder = tmp_path_factory.mktemp("capi")

    def build(name: str, text: str, *more: str) -> None:
        source = folder / f"{name}.c"
        source.write_text(text, "utf-8")
        command = [compiler, "-shared", "-fPIC", "-o", f"lib{name}.so", source.name, *more]
        subprocess.run(command, cwd=folder, check=True)

    build("here", "int of_here(void) { return 1; }")
    build("gone", "int of_gone(void) { return 1; }")
    build("provider", SOURCE, "-L.", "-lhere", "-lgone", "-Wl,--no-as-needed,-rpath,$ORIGIN")
    return folder / "libprovider.so"


def test_each_library_that_is_missing_is_named(provider: Path, tmp_path: Path) -> None:
    shutil.copy(provider, tmp_path)
    copy = tmp_path / provider.name

    assert [reason.partition(":")[0] for reason in missing_dependencies(copy)] == [
        "libhere.so",
        "libgone.so",
    ]
    shutil.copy(provider.with_name("libhere.so"), tmp_path)
    with pytest.raises(EnvironmentFault) as caught:
        require_library(copy, PROVIDER, engine="tensorrt")
    assert str(caught.value) == (
        f"engine tensorrt: provider '{PROVIDER}' cannot be loaded: libgone.so: cannot open shared "
        "object file: No such file or directory. Install the versions of CUDA and TensorRT that "
        "this onnxruntime-gpu was built for, and put the folders of their libraries on "
        "LD_LIBRARY_PATH; see docs/tensorrt.md"
    )
    # What onnxruntime gives a provider, which has all else, is not missing; no library is no fault.
    with pytest.raises(OSError, match="Provider_of_nobody"):
        ctypes.CDLL(str(provider))
    require_library(provider, PROVIDER, engine="tensorrt")
    require_library(tmp_path / "gone.so", PROVIDER, engine="tensorrt")
    (tmp_path / "text.so").write_text("no library", "utf-8")
    assert missing_dependencies(tmp_path / "text.so") == []
    assert missing_dependencies(Path(sys.executable).resolve()) == []


ONNXRUNTIME = """
def get_all_providers(): return ["TensorrtExecutionProvider"]
get_available_providers = get_all_providers
"""

TENSORRT_LIBS = """
import ctypes, pathlib
ctypes.CDLL(str(pathlib.Path(__file__).with_name("libofwheel.so")))
"""
"""As NVIDIA's wheel does: its libraries are loaded from beside it when it is imported."""


@pytest.mark.parametrize("wheel", [True, False])
def test_what_nvidia_s_wheel_of_tensorrt_brought_is_found(tmp_path: Path, wheel: bool) -> None:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a library for this test needs Linux and a C compiler called cc")
    capi, libs = tmp_path / "onnxruntime" / "capi", tmp_path / "tensorrt_libs"
    for folder in (capi, libs):
        folder.mkdir(parents=True)
    (capi.parent / "__init__.py").write_text(ONNXRUNTIME, "utf-8")
    (tmp_path / "onnx.py").touch()
    if wheel:
        (libs / "__init__.py").write_text(TENSORRT_LIBS, "utf-8")
    for library, text, more in (
        (libs / "libofwheel.so", "int of_wheel(void) { return 1; }", ["-Wl,-soname,libofwheel.so"]),
        (
            capi / "libonnxruntime_providers_tensorrt.so",
            "extern int of_wheel(void); int all(void) { return of_wheel(); }",
            [f"-L{libs}", "-lofwheel"],
        ),
    ):
        command = [compiler, "-shared", "-fPIC", "-o", str(library), "-x", "c", "-", "-x", "none"]
        subprocess.run([*command, *more], input=text, text=True, check=True)
    code = (
        "from pytest_mlperf.adapters.engines.onnxruntime._session import Providers\n"
        "from pytest_mlperf.adapters.engines.onnxruntime._session import require_providers\n"
        "require_providers(Providers.of(['tensorrt'], None, None), engine='onnxruntime')"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode == 0) is wheel, done.stderr
    assert ("libofwheel.so: cannot open shared object file" in done.stderr) is not wheel
