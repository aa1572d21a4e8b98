"""Run a case on a node: unpack the project, start pytest, forward its messages.

Ray starts its workers at niceness 15, with OMP_NUM_THREADS set to the requested number of
processors, and as the first candidates of the out-of-memory killer. As none of this may affect the
measurement, pytest gets the environment and the niceness with which Ray was started on the node.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import shutil
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf import __version__
from pytest_mlperf.extension import ChildProcess, ended
from pytest_mlperf.processes import log_tail
from pytest_mlperf.stores.digests import cache_folder

FOLDER_VARIABLE = "PYTEST_MLPERF_FLEET"
"""Variable with the node's folder of unpacked projects; default: in the user's cache."""

LISTEN_SECONDS = 30.0
"""Maximum interval of replies to the session; long, so as not to disturb the measurement."""

MAX_REPORT_BYTES = 1 << 28
ABANDONED_SECONDS = 20.0
MAX_PROJECT_SECONDS = 7 * 86_400.0
MAX_FILE_BYTES, MAX_RETURNED_BYTES = 16 << 20, 64 << 20
"""Maximum sizes of a returned file, and of all of a case; larger logs stay on the node."""

LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "RAY_")
"""Prefixes of variables by which engines would detect a launcher."""

UNPACKED_MARK = ".unpacked"

BASELINES = "baselines"
"""Default name of the folders of baselines."""

Message = dict[str, Any]


class NodeCase:
    """Run one case on this node; deleting this object ends its processes."""

    def begin(self, order: Mapping[str, Any], archive: bytes) -> list[Message]:
        """Unpack the project and start pytest for a case; return messages for the session.

        `order` describes the case, see `orders.order_of`; `archive` is the packed project.
        """
        self._order = order
        if order["version"] != __version__:
            cause = f"the node has pytest-mlperf {__version__}, your machine {order['version']}"
            cause += "; install the same version on both"
            over: Message = {"topic": "over", "code": None, "ended": "was not started"}
            over |= {"tail": [], "files": b"", "left": []}
            return [{"topic": "refused", "cause": cause}, over]
        self._project = unpacked(archive, str(order["digest"]), str(order["name"]))
        here = str(self._project)
        self._runs_dir = Path(_here(str(order["runs_dir"]), here))
        self._run = self._runs_dir / "runs" / str(order["run"])
        self._before = set(_names(self._run))
        self._began = time.time()
        notices = _restore_priorities()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        ini = self._project.with_name(f"{self._project.name}.ini")
        ini.write_text("[pytest]\n", "utf-8")
        config = _here(str(order["ini"]), here) if order["ini"] else str(ini)
        command = [sys.executable, "-m", "pytest", "-p", "pytest_mlperf.addons.fleet.child"]
        command += [f"--rootdir={here}", "-c", config]
        command += [_here(word, here) for word in order["arguments"]]
        environment = {**_node_environment(), **order["environment"]}
        environment["MLPERF_FLEET_WORKER"] = json.dumps(order["worker"])
        folder = self._project / str(order["folder"])
        with contextlib.chdir(folder if folder.is_dir() else self._project):
            self._child = ChildProcess(
                command, stdout=-1, stderr=self._log, environment=environment
            )
        threading.Thread(target=self._stop_with_raylet, args=(os.getppid(),), daemon=True).start()
        return [{"topic": "begun", "project": here, "notices": notices}]

    def _stop_with_raylet(self, raylet_pid: int) -> None:
        """Stop the case when Ray's local daemon `raylet_pid` ends; Ray notices much later."""
        with contextlib.suppress(OSError):
            select.select([os.pidfd_open(raylet_pid)], [], [])
        self._child.close_stdin()

    def heard(self) -> list[Message]:
        """Return new messages from the case's pytest process; the last one has the topic "over"."""
        messages: list[Message] = []
        try:
            line = self._child.line(time.monotonic() + LISTEN_SECONDS, MAX_REPORT_BYTES)
            while line is not None:
                messages.append(json.loads(line))
                line = self._child.line(time.monotonic(), MAX_REPORT_BYTES)
        except (EOFError, ValueError):
            messages.append(self._over())
        return messages

    def _over(self) -> Message:
        self._child.end(alone_s=ABANDONED_SECONDS, term_s=2.0, killed_s=5.0)
        self._log.seek(0)
        with tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(self._log, copy)
            copy.flush()
            tail = log_tail(copy.name)
        files, left = self._files()
        code = self._child.returncode
        return {
            "topic": "over",
            "code": code,
            "ended": "is still there" if code is None else ended(code),
            "tail": tail,
            "files": files,
            "left": left,
        }

    def _files(self) -> tuple[bytes, list[str]]:
        """Return the case's files as a tar archive, and the paths of files too large to send."""
        packed, left, total = io.BytesIO(), [], 0
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, path in self._left_behind():
                size = path.stat().st_size
                if size > MAX_FILE_BYTES or total + size > MAX_RETURNED_BYTES:
                    left.append(str(path))
                    continue
                total += size
                archive.add(path, name, recursive=False)
        return packed.getvalue(), left

    def _left_behind(self) -> Iterator[tuple[str, Path]]:
        for name in sorted(set(_names(self._run)) - self._before):
            if any(is_of(case, name) for case in self._order["cases"]):
                for path in _files_of(self._run / name):
                    yield f"runs-dir/{path.relative_to(self._runs_dir)}", path
        if self._order["baselines"]:
            folder = Path(_here(str(self._order["baselines"]), str(self._project)))
            for path in _files_of(folder) if folder.is_relative_to(self._project) else ():
                inside = path.relative_to(self._project)
                of_all = folder == self._project and BASELINES not in inside.parts
                if not of_all and path.suffix == ".json" and path.stat().st_mtime >= self._began:
                    yield f"project/{inside}", path


def is_of(case: str, folder: str) -> bool:
    """Return whether the folder of a run belongs to a case; every folder belongs to case ""."""
    return not case or re.match(rf"{re.escape(case)}(\.|$)", folder) is not None


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _files_of(folder: Path) -> Iterator[Path]:
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    yield from (path for path in paths if path.is_file() and not path.is_symlink())


PROJECT_PLACEHOLDER = "{project}"


def _here(word: str, project: str) -> str:
    return word.replace(PROJECT_PLACEHOLDER, project)


def _node_environment() -> dict[str, str]:
    variables = dict(os.environ)
    with contextlib.suppress(OSError, ValueError):
        raw = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        pairs = (os.fsdecode(one).partition("=") for one in raw if one)
        if started := {name: value for name, _, value in pairs}:
            variables = started
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices:  # Ray numbers GPUs like NVML, in PCI order
        variables["CUDA_VISIBLE_DEVICES"] = devices
        variables.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return {name: value for name, value in variables.items() if not name.startswith(LAUNCHERS)}


def _restore_priorities() -> list[str]:
    """Undo Ray's changes of niceness and out-of-memory priority; return warnings if that fails."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    with contextlib.suppress(OSError):
        usual = os.getpriority(os.PRIO_PROCESS, os.getppid())
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        if nice > usual:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, usual)
            except OSError:
                text = f"measured at niceness {nice}, below the priority of other processes"
                return [f"{text}: start Ray with RAY_worker_niceness=0"]
    return []


def unpacked(archive: bytes, digest: str, name: str) -> Path:
    """Unpack a project unless its digest was unpacked before; return the folder.

    Projects that were not used for a week are removed.
    """
    root = Path(os.environ.get(FOLDER_VARIABLE) or cache_folder() / "fleet")
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{name}-{digest[:12]}"
    if not (folder / UNPACKED_MARK).exists():
        for mark in root.glob(f"*/{UNPACKED_MARK}"):
            with contextlib.suppress(OSError):
                if time.time() - mark.stat().st_mtime > MAX_PROJECT_SECONDS:
                    shutil.rmtree(mark.parent, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".") as temporary:
            whole = Path(temporary) / "project"
            whole.mkdir()
            with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
                packed.extractall(whole, filter="data")
            (whole / UNPACKED_MARK).touch()
            with contextlib.suppress(OSError):  # another case unpacked it first
                whole.rename(folder)
    (folder / UNPACKED_MARK).touch()
    return folder.resolve()
