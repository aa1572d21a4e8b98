"""Wheels for a GPU machine that has torch and transformers, and no network nor pip.

    python -m benchmarks.gpu.bundle [--out build/gpu-bundle] [--python 3.12 3.11]

`make gpu-bundle` gathers them where there is a network, `python -m benchmarks.gpu --bundle DIR`
uses them. The standard library is all that is imported here.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = Path("build/gpu-bundle")

WHEELS = (
    "absl-py",
    "accelerate",
    "annotated-types",
    "certifi",
    "charset-normalizer",
    "cloudpickle",
    "defusedxml",
    "diffusers",
    "filelock",
    "idna",
    "importlib-metadata",
    "iniconfig",
    "joblib",
    "lazy-importer",
    "mlcommons-loadgen",
    "nltk",
    "nvidia-ml-py",
    "packaging",
    "pillow",
    "pluggy",
    "psutil",
    "py-cpuinfo2",
    "pydantic",
    "pydantic-core",
    "pygments",
    "pytest",
    "pytest-benchmark",
    "rapidfuzz",
    "requests",
    "six",
    "typing-extensions",
    "typing-inspection",
    "urllib3",
    "zipp",
)
"""What pytest-mlperf[diffusion] needs beside torch, transformers, NumPy and what these need."""

SOURCES = ("rouge-score",)
"""Of these too, but published as source alone: pip makes their wheels, for any Python."""

PYTHONS = ("3.12", "3.11")
MACHINE = "x86_64"
GLIBCS = tuple(range(17, 36))
"""Minor versions of glibc 2 whose wheels fit: pip takes each only when it is named."""

PURE = "any"
"""Folder of the wheels that fit every Python."""


class BundleError(Exception):
    """A bundle that cannot be made or used; says what, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather the wheels; return 0, or 1 where one cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.bundle", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    options = parser.parse_args(arguments)
    try:
        gather(options.out, options.python)
    except BundleError as error:
        print(error, file=sys.stderr)
        return 1
    for folder in sorted(each for each in options.out.iterdir() if each.is_dir()):
        wheels = list(folder.glob("*.whl"))
        size = sum(wheel.stat().st_size for wheel in wheels)
        print(f"{folder}: {len(wheels)} wheels, {size / 1e6:.1f} MB")
    return 0


def gather(out: Path, pythons: Sequence[str]) -> None:
    """Fill a folder with the wheels: one folder for each Python, one for all of them.

    Args:
        out: The folder; what is in it of an older bundle goes.
        pythons: Versions of CPython, e.g. "3.12".

    Raises:
        BundleError: pip failed.
    """
    for old in out.glob("*/*.whl"):
        old.unlink()
    pure = out / PURE
    _pip("wheel", "--no-deps", "--wheel-dir", str(pure), str(ROOT))
    pinned = ("--constraint", str(ROOT / "constraints.txt"))
    _pip("wheel", "--no-deps", "--wheel-dir", str(pure), *pinned, *SOURCES)
    for version in pythons:
        own = out / _folder(version)
        _pip(
            *("download", "--no-deps", "--only-binary=:all:", "--implementation=cp"),
            *("--python-version", version, "--dest", str(own)),
            *(f"--platform=manylinux_2_{glibc}_{MACHINE}" for glibc in GLIBCS),
            *(f"--platform=manylinux2014_{MACHINE}", "--platform=any"),
            *(*pinned, *WHEELS),
        )
        for wheel in own.glob("*-none-any.whl"):
            wheel.replace(pure / wheel.name)


@contextlib.contextmanager
def unpacked(bundle: Path) -> Iterator[Path]:
    """Yield a temporary folder with the packages of a bundle that fit this Python.

    Raises:
        BundleError: There is none for this Python and machine, or a wheel is damaged.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    own = bundle / _folder(version)
    if platform.machine() != MACHINE or not any(own.glob("*.whl")):
        raise BundleError(
            f"{bundle} has no wheels for CPython {version} on {platform.machine()}: it has "
            f"{', '.join(sorted(each.name for each in bundle.glob('cp*'))) or 'none at all'}, on "
            f"{MACHINE}; make one with: python -m benchmarks.gpu.bundle --python {version}"
        )
    with tempfile.TemporaryDirectory(prefix="mlperf-bundle-") as folder:
        for wheel in sorted([*own.glob("*.whl"), *(bundle / PURE).glob("*.whl")]):
            try:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(folder)
            except (OSError, zipfile.BadZipFile) as error:
                raise BundleError(f"{wheel} cannot be unpacked: {error}; copy it anew") from error
        yield Path(folder)


def _folder(version: str) -> str:
    return f"cp{version.replace('.', '')}"


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        raise BundleError(
            f"pip {arguments[0]} failed with exit status {done.returncode}, see above"
        )


if __name__ == "__main__":
    sys.exit(main())
