"""`pytest-mlperf judge` on each Python, without LoadGen, numpy and GPU libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.addons.judge.recorded import serving

pytestmark = [pytest.mark.process, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[3]

NEEDED = ("pytest", "pydantic", "annotated-types", "filelock")

LACKING = ("numpy", "mlperf_loadgen", "pynvml", "onnxruntime", "torch")

MINORS = (11, 12, 13)

PIP = ("-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--disable-pip-version-check")


def interpreter(minor: int) -> str | None:
    """Return a Python of this version: this one, one on the path, or one of pyenv."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    builds = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
    # pyenv's shims are on the path for versions that are not in use, too.
    return str(builds[0]) if builds else shutil.which(f"python3.{minor}")


def installed(folder: Path, python: str) -> Path:
    """Make an environment with this checkout and what judging needs; return its Python."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    python_there = folder / "bin" / "python"
    done = subprocess.run(
        [python_there, *PIP, *NEEDED], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"pip cannot install {NEEDED}: {done.stderr.splitlines()[-1:]}")
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "checkout.pth").write_text(f"{ROOT}\n", "utf-8")
    about = packages / "pytest_mlperf-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-mlperf\nVersion: 0.1.0\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return python_there


@pytest.mark.parametrize("minor", MINORS)
def test_it_judges_without_what_measuring_needs(minor: int, tmp_path: Path) -> None:
    python = interpreter(minor)
    if python is None:
        pytest.skip(f"no Python 3.{minor} here")
    python_there = installed(tmp_path / "venv", python)
    for name, slower, day in (("old", 1.0, 1), ("slow", 1.12, 11)):
        serving(tmp_path / name, side=day > 1, slower=slower, first_day=day)
    reports = [f"--report={form}=r.{form}" for form in ("json", "junit", "markdown", "comment")]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [python_there, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    there = run(
        "-c", f"import importlib.util as u; print([n for n in {LACKING} if u.find_spec(n)])"
    )
    judge = ("-m", "pytest_mlperf", "judge", "slow")
    judged = run(*judge, "--against", "old", *reports)
    update = ("--update", "missing", "--reason", "first")
    recorded = run("-m", "pytest_mlperf", "judge", "old", "--baseline", "x", *update)
    against = run(*judge, "--baseline", "x")

    assert there.stdout == "[]\n"
    assert (judged.returncode, judged.stderr) == (1, "")
    assert judged.stdout.startswith("PERF DROP  p50 TTFT +12.0 %")
    assert sorted(path.name for path in tmp_path.glob("r.*")) == [
        *("r.comment", "r.json", "r.junit", "r.markdown"),
    ]
    assert (recorded.returncode, recorded.stderr) == (0, "")
    assert (against.returncode, against.stdout[:9]) == (1, "PERF DROP")
