"""A second virtual environment that has what this one has, and git repositories with two builds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.children import shebang

ENGINE = '''\
"""An engine of the tested project; how slow it is depends on where and what it is."""

import sys
from pathlib import Path

import pytest_mlperf
from pytest_mlperf.builtin.null import NullEngine

VERSION = "1.0"
FACTOR = 1


class Acme(NullEngine):
    """Sleeps in batches of 16, so its speed does not depend on the load of the machine."""

    def __init__(self, dataset, model=None, precision="", *, slow=""):
        # `slow` names the environment in which this engine is half as fast.
        factor = 2 if slow and Path(sys.prefix).name == slow else FACTOR
        super().__init__(dataset, latency_s=0.002 * factor, batch_size=16, threads=1)

    def describe(self):
        copy = Path(pytest_mlperf.__file__).parents[1].name
        return {"acme": VERSION, "file": __file__, "plugin": copy, "prefix": sys.prefix}
'''

PASSES_ON_NOTHING = """\
import os, subprocess, sys
# As a container does: no variable, no descriptor but three, another working folder.
done = subprocess.run(sys.argv[1:], cwd="/", env={}, close_fds=True)
sys.exit(done.returncode)
"""


IS_OLDER = f"""\
{shebang("")}
# Stands for a Python that is too old: all that is asked of one is to say so.
import runpy, sys
sys.version_info = (3, 10, 14, "final", 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def environment(folder: Path) -> Path:
    """Make a virtual environment in which the libraries of this one can be imported.

    What is installed here in editable form, as this package may be, cannot.

    Returns:
        Its Python.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shared = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n", "utf-8")
    return folder / "bin" / "python"


def wheel(folder: Path, name: str, version: str) -> Path:
    about = f"{name}-{version}.dist-info"
    tag = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        f"{name}.py": f'VERSION = "{version}"\n',
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": tag,
        f"{about}/RECORD": "",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
