"""Test that a checkpoint is built once, whole or not at all, and again when its inputs change."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.processes import log_tail
from pytest_mlperf.run.checkpoints import _store as checkpoint_source
from pytest_mlperf.run.checkpoints import build as checkpoint_about
from pytest_mlperf.run.checkpoints._store import SHARED, CheckpointStore
from pytest_mlperf.run.checkpoints.build import Checkpoint, builds_folder, checkpoint_for, state_of
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.project import new_folder
from pytest_mlperf.suite.plan import Planned, plan_suite
from tests.jobs import job_of
from tests.run import other_python
from tests.run.builders_that_fail import NO_WEIGHTS
from tests.run.test_sink import in_threads

pytestmark = pytest.mark.process

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
model = "model"
dataset = {{ use = "synthetic", samples = 32 }}
[[engines]]
use = "null"
precision = "int8"
build = {{ use = "builders_that_fail:Acme", recipe = "{recipe}", journal = "{journal}"{more} }}
[[scenarios]]
name = "Offline"
"""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lab:
    """A project with a model, a builder of its own and a suite that names them."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal.txt"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def builds(self) -> Path:
        return self.path / ".mlperf" / "builds"

    @property
    def times_built(self) -> int:
        return len(self.journal.read_text("utf-8").splitlines()) if self.journal.exists() else 0

    def suite(self, recipe: str = "int8", more: str = "") -> Path:
        file = self.path / "s.mlperf.toml"
        file.write_text(SUITE.format(recipe=recipe, journal=self.journal, more=more), "utf-8")
        return file

    def planned(self, recipe: str = "int8", more: str = "") -> Planned:
        (planned,) = plan_suite(self.suite(recipe, more))
        return planned

    def build(self, recipe: str = "int8", more: str = "", *, progress_s: float = 60) -> Checkpoint:
        planned, messages = self.planned(recipe, more), list[str]()
        conditions = self.conditions(progress_s)
        folder = new_folder(conditions.folder, "case")
        checkpoint = checkpoint_for(job_of(planned), conditions, folder, messages.append)
        assert checkpoint is not None
        return checkpoint

    def conditions(self, progress_s: float = 60) -> Conditions:
        return Conditions(
            folder=self.path / ".mlperf" / "runs" / "now",
            session="now",
            patience=Patience(progress_s=progress_s),
            lease_limit_s=60,
            machine=detect(gpus=False),
        )

    def version(self, version: str) -> None:
        """Install a version of the quantiser, by its metadata."""
        for old in self.path.glob("acme_quantiser-*.dist-info"):
            shutil.rmtree(old)
        about = self.path / f"acme_quantiser-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        text = f"Metadata-Version: 2.1\nName: acme-quantiser\nVersion: {version}\n"
        about.write_text(text, "utf-8")
        checkpoint_about._asked.cache_clear()

    def left(self) -> list[str]:
        """Return the files in the folder of builds without locks and remembered digests."""
        names = [path.name for path in self.builds.iterdir()] if self.builds.is_dir() else []
        return sorted(n for n in names if not n.endswith(".lock") and n not in KEPT)


KEPT = (".gitignore", ".known")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.delenv(SHARED, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copy(HERE / "builders_that_fail.py", tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 64}', "utf-8")
    (tmp_path / "model" / "model.safetensors").write_bytes(NO_WEIGHTS)
    (tmp_path / "model" / "tokenizer.json").write_text("{}", "utf-8")
    checkpoint_lab = Lab(tmp_path)
    checkpoint_lab.version("1.0")
    return checkpoint_lab


def test_any_input_of_a_checkpoint_changes_its_key(lab: Lab) -> None:
    """Two versions of a builder differ by the version alone: it is shown as what changed."""
    builder = lab.path / "builders_that_fail.py"
    first = lab.build()
    assert lab.build() == first
    assert lab.times_built == 1
    assert first.folder.parent.parent == lab.builds
    assert (first.folder / "tokenizer.json").read_text("utf-8") == "{}"
    first.require({"weights_sha256": first.provenance["weights_sha256"][:16]})
    first.require({})
    with pytest.raises(RunError, match="the engine loaded weights with SHA-256 0"):
        first.require({"weights_sha256": "0" * 16})

    lab.version("1.1")
    later = lab.build()
    names = first.facts.keys() | later.facts.keys()
    changed = {k: (first.facts.get(k), later.facts.get(k)) for k in names}
    assert {k: pair for k, pair in changed.items() if pair[0] != pair[1]} == {
        "build.acme-quantiser": ("1.0", "1.1")
    }
    assert later.facts["build.recipe"] == "int8"
    assert later.facts["build.quantisation"] == "none at all"

    built = [first, later, lab.build("int4"), lab.build(more=", size = 3")]
    for file in (lab.model / "config.json", lab.model / "model.safetensors", builder):
        file.write_bytes(file.read_bytes() + b" \n")
        lab.version("1.1")
        built.append(lab.build())
    keys = {checkpoint.folder.parent.name for checkpoint in built}
    assert len(keys) == len(built) == lab.times_built


def test_calibration_data_is_part_of_a_checkpoint(lab: Lab) -> None:
    shutil.copy(HERE / "prompts_of_ones_own.py", lab.path)
    more = ", calibration = {{ use = 'prompts_of_ones_own:prompts', first = {} }}"
    three, seven = (lab.build(more=more.format(first)) for first in (3, 7))

    made = json.loads((three.folder / "config.json").read_text("utf-8"))
    assert made == {"prompts": [[3, 4], [4, 5, 6]]}
    assert three != seven
    assert three.facts["build.calibration"] == "prompts_of_ones_own:prompts, 2 samples"
    differing = {k for k, v in three.facts.items() if seven.facts[k] != v}
    assert differing == {"build.calibration_digest"}


def test_unbuildable_inputs_are_refused_before_anything_is_built(lab: Lab) -> None:
    """What is not there is a skip, and looking at a suite imports nothing."""
    with pytest.raises(UnavailableError, match=r"engines\[0\]\.build\.python, nowhere/bin/python"):
        lab.build(more=', python = "nowhere/bin/python"')
    assert state_of(job_of(lab.planned()).build, lab.path / ".mlperf") == ""
    for more, message in (
        (", calibration = 4", r"sample \d+ of the data set is of type int; "),
        (", calibration = 40", "calibration needs 40 samples, the data set has 32"),
        ("", "has no safetensors files to quantise"),
    ):
        if not more:
            (lab.model / "model.safetensors").rename(lab.model / "pytorch_model.bin")
        with pytest.raises(RunError, match=message):
            lab.build(more=more)
    assert (lab.times_built, lab.left()) == (0, [])


def test_a_builder_that_fails_leaves_an_error_and_nothing_else(lab: Lab) -> None:
    """One sentence and the log; no half-built checkpoint, and the next try is a fresh one."""
    for recipe, message, log in (
        ("breaks", "ZeroDivisionError: a scale of 0", "the quantiser said this"),
        ("refuses", "this model has an odd number of heads", ""),
        ("is-killed", "the builder was killed by SIGKILL; if nobody killed it, the machine", ""),
        ("pickles", "the builder wrote pytorch_model.bin, which can contain code", ""),
        ("no-weights", "the builder wrote no weights: there is no safetensors file", ""),
        ("no-config", "the builder wrote no config.json, so it made no model", ""),
    ):
        with pytest.raises(RunError, match=message) as caught:
            lab.build(recipe)

        assert caught.value.layer == "build"
        assert str(caught.value).startswith(f"building builders_that_fail:Acme {recipe}: ")
        assert log in "\n".join(log_tail(caught.value.log, 60))
        assert lab.left() == []
    with pytest.raises(RunError, match="no progress for 2 s, 1 of 2 layers; killed; raise the ini"):
        lab.build("hangs", progress_s=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(lab.journal.read_text("utf-8").split()[-1]), 0)
    assert lab.left() == []


PARENT = """
import sys
from pathlib import Path
sys.path[:0] = [{path!r}, {root!r}]
from tests.run.test_checkpoint_builds import Lab
Lab(Path({path!r})).build("hangs")
"""


def test_a_builder_does_not_outlive_its_parent(lab: Lab) -> None:
    code = PARENT.format(path=str(lab.path), root=str(HERE.parents[1]))
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while lab.times_built == 0:
        assert parent.poll() is None, parent.communicate()[1].decode()
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)
    builder = os.pidfd_open(int(lab.journal.read_text("utf-8")))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    assert select.select([builder], [], [], 30)[0], "the builder is still there"
    os.close(builder)
    assert [name for name in lab.left() if name.endswith(".tmp")]
    lab.build()
    assert [name for name in lab.left() if name.endswith(".tmp")] == []


@pytest.mark.usefixtures("interpreter")  # filelock refuses a fork beside its locks
def test_two_at_once_build_one(lab: Lab) -> None:
    planned, checkpoints = lab.planned(), list[Checkpoint | None]()
    folders = [new_folder(lab.conditions().folder, "case") for _ in range(2)]

    def build(folder: Path) -> None:
        checkpoints.append(
            checkpoint_for(job_of(planned), lab.conditions(), folder, lambda _: None)
        )

    in_threads(partial(build, folder) for folder in folders)

    assert lab.times_built == 1
    assert checkpoints[0] == checkpoints[1] is not None


def test_a_damaged_checkpoint_is_built_again(lab: Lab) -> None:
    """What a killed builder of another checkpoint left is removed."""
    folder = lab.build().folder
    (folder / "model.safetensors").write_bytes(b"")
    assert lab.build().folder == folder
    (folder / "tokenizer.json").unlink()
    assert lab.build().folder == folder
    (folder.parent / "provenance.json").write_text("{", "utf-8")
    with CheckpointStore(lab.builds).lock_checkpoint("busy", limit_s=1, waiting=lambda _: None):
        for name in (".busy.1.tmp", ".dead.2.tmp"):
            (lab.builds / name / "model").mkdir(parents=True)
        assert lab.build().folder == folder
        assert [name for name in lab.left() if name.endswith(".tmp")] == [".busy.1.tmp"]

    assert lab.times_built == 4
    assert (folder / "model.safetensors").read_bytes() == NO_WEIGHTS


def test_links_and_pipes_of_others_in_a_folder_of_builds_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED, str(tmp_path))
    victim, builds = tmp_path / "victim", CheckpointStore(tmp_path / "builds")
    (victim / "model").mkdir(parents=True)
    file = victim / "file"
    file.write_text("text")
    builds.folder.mkdir()
    (builds.folder / ".dead.1.tmp").symlink_to(victim)
    (builds.folder / "dead.lock").symlink_to(file)
    (builds.folder / "link.lock").symlink_to(file)
    (builds.folder / "hard.lock").hardlink_to(file)
    os.mkfifo(builds.folder / "pipe.lock")

    for key in ("link", "hard", "pipe"):
        with pytest.raises(RunError), builds.lock_checkpoint(key, limit_s=0, waiting=pytest.fail):
            pass
    with (
        builds.lock_checkpoint("good", limit_s=1, waiting=pytest.fail),
        builds.temporary_folder("good"),
    ):
        pass

    assert file.read_text() == "text"
    assert (victim / "model").is_dir()
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with (
        pytest.raises(RunError, match="no dir_fd"),
        builds.lock_checkpoint("a", limit_s=0, waiting=print),
    ):
        pass


def test_a_folder_of_builds_can_be_shared_and_holds_no_secrets(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are stored as the suite writes them; unchanged files are not read again."""
    monkeypatch.setenv(SHARED, str(lab.path / "shared"))
    monkeypatch.setenv("ACME_JOURNAL", str(lab.journal))
    monkeypatch.setattr(Lab, "journal", "${ACME_JOURNAL}")
    old = time.time() - 3600
    for file in lab.model.iterdir():
        os.utime(file, (old, old))
    # A file's change time cannot be set: the margin for it is what waits otherwise.
    monkeypatch.setattr(checkpoint_source, "SETTLED_SECONDS", -1.0)

    built = lab.build()

    assert built.folder.is_relative_to(lab.path / "shared")
    assert not (lab.path / "shared" / ".gitignore").exists()
    assert (built.folder / "config.json").stat().st_mode & 0o444
    assert builds_folder(Path("/x/.mlperf/runs/id")) == lab.path / "shared"
    assert "${ACME_JOURNAL}" in built.facts["build.options"]
    assert str(lab.path) not in (built.folder.parent / "provenance.json").read_text("utf-8")
    monkeypatch.setattr("pytest_mlperf.run.checkpoints.build._store.digests", None)
    assert lab.build() == built


def test_the_builder_runs_in_the_python_that_is_named(lab: Lab) -> None:
    python = other_python.environment(lab.path / "other")
    more = f', python = "{python}"'
    (packages,) = (lab.path / "other").glob("lib/python*/site-packages")
    with pytest.raises(RunError, match="no module builders_that_fail in "):
        lab.build(more=more)

    shutil.copy(HERE / "builders_that_fail.py", packages)
    with pytest.raises(RunError) as caught:
        lab.build(more=more)
    assert str(caught.value) == (
        "builder builders_that_fail:Acme needs acme-quantiser, which is not installed in python "
        f"{python} (engines[0].build.python): pip install acme-quantiser"
    )

    shutil.copytree(
        lab.path / "acme_quantiser-1.0.dist-info", packages / "acme_quantiser-2.0.dist-info"
    )
    checkpoint_about._asked.cache_clear()
    built = lab.build(more=more)
    made = json.loads((built.folder.parent / "provenance.json").read_text("utf-8"))
    assert made["versions"] == {"acme-quantiser": "1.0"}
