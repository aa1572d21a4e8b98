"""A power limit is set for a case, and every GPU has its own again however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.hardware import machine, power_limit
from pytest_mlperf.hardware._nvml import NvmlLibrary, find
from pytest_mlperf.hardware.power_limit import LimitNote, Refused, saved_limits
from tests.nvml.library import Fake

pytestmark = pytest.mark.process  # the library is compiled

H200 = "limit 700 min=200 max=700"
TWO = ("device", H200, "device", H200)
SCENARIO = TWO
"""Two GPUs at 700 W, which can be set to 200 to 700 W."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    note_folder = tmp_path / "pytest-mlperf"
    note_folder.mkdir()
    return note_folder


def set_to(opened: NvmlLibrary, folder: Path, watts: int, uuid: str = "GPU-0") -> None:
    power_limit.set_limit(find(opened, uuid), watts, folder)


USUAL: dict[str, Any] = {"uuid": "GPU-0", "was_mw": 700_000, "enforced_mw": 700_000}
USUAL["set_mw"] = 500_000
NOTE = LimitNote(**USUAL)


def leave(folder: Path, **changes: Any) -> Path:
    """Write a note as a guard that was killed leaves it."""
    note = folder / "GPU-0.power-limit.json"
    note.write_text(json.dumps({**USUAL, **changes}))
    return note


def test_the_limit_before_is_noted_and_given_back(
    fake: Fake, opened: NvmlLibrary, folder: Path
) -> None:
    """A limit set by others during the run, such as an administrator or a reboot, is left alone."""
    set_to(opened, folder, 500)
    assert (fake.limit_w(), saved_limits(folder)) == (500, {"GPU-0": NOTE})
    done = power_limit.restore_all(opened, ["GPU-0", "GPU-1"], folder)
    assert (fake.limit_w(), saved_limits(folder)) == (700, {})
    assert done["done"] == ["GPU-0: power limit restored from 500 W to 700 W"]
    assert fake.limit_w(1) is None

    set_to(opened, folder, 500)
    opened.nvml.nvmlDeviceSetPowerManagementLimit(find(opened, "GPU-0").handle, 600_000)
    done = power_limit.restore_all(opened, ["GPU-0"], folder)
    assert done["done"] == ["GPU-0 keeps its power limit of 600 W, which another process set"]
    assert (fake.limit_w(), saved_limits(folder)) == (600, {})


SET = "nvmlDeviceSetPowerManagementLimit"

REFUSED: list[tuple[str, str, int, str, str]] = [
    ("", "GPU-0", 705, "suite", r"power_limit_w = 705: GPU-0 allows 200 to 700 W"),
    ("", "GPU-0", 195, "suite", r"power_limit_w = 195: .* 200 to 700 W"),
    (f"fail {SET} 4", "GPU-0", 500, "permission", "sudo nvidia-smi -i GPU-0 -pl 500"),
    (f"fail {SET} 3", "GPU-0", 500, "suite", "GPU-0 has no power limit that can be set"),
    (f"fail {SET} 999", "GPU-0", 500, "gpu", r"GPU-0 could not be set to 500 W: .*\(999\)"),
    ("mig 2", "GPU-0", 500, "suite", "GPU-0 is divided by MIG"),
    ("mig 2", "MIG-0-1", 500, "suite", "MIG-0-1 is divided by MIG"),
]
"""What else the scenario says, GPU, watts, layer of the error and its sentence."""


def test_a_limit_that_cannot_be_set_is_refused_in_one_sentence(
    fake: Fake, opened: NvmlLibrary, folder: Path
) -> None:
    """A limit that is there already needs no right."""
    fake.write(f"fail {SET} 4", *TWO)
    set_to(opened, folder, 700)
    assert (SET in fake.calls(), saved_limits(folder)) == (False, {})
    for line, uuid, watts, layer, message in REFUSED:
        fake.write(*(["device", H200, line] if line == "mig 2" else [line, *TWO]))
        with pytest.raises(Refused, match=message) as error:
            set_to(opened, folder, watts, uuid)
        assert error.value.layer == layer
        assert (fake.limit_w(), saved_limits(folder)) == (None, {})

    fake.write("device", f"{H200} enforced=450")
    with pytest.raises(Refused, match="GPU-0: the power limit was set to 500 W, but 450 W"):
        set_to(opened, folder, 500)
    power_limit.restore_all(opened, ["GPU-0"], folder)
    assert fake.limit_w() == 700

    (folder / "GPU-0.power-limit.json").mkdir()
    with pytest.raises(
        Refused, match=r"was not changed, because the present one cannot be saved in .*; make"
    ):
        set_to(opened, folder, 500)
    assert (fake.limit_w(), saved_limits(folder)) == (700, {})


def test_a_limit_that_cannot_be_restored_has_the_command_for_it(
    fake: Fake, opened: NvmlLibrary, folder: Path
) -> None:
    """The note stays for who may; other GPUs have theirs back."""
    for uuid in ("GPU-0", "GPU-1"):
        set_to(opened, folder, 500, uuid)
    fake.write(f"fail {SET} 4 dev=0", *TWO)

    restored = power_limit.restore_all(opened, ["GPU-0", "GPU-1"], folder)

    (trouble,) = restored["troubles"]
    assert trouble.startswith("GPU-0: the power limit that a case set (500 W) was not restored")
    assert trouble.endswith("sudo nvidia-smi -i GPU-0 -pl 700")
    assert (fake.limit_w(0), fake.limit_w(1)) == (500, 700)
    assert saved_limits(folder).keys() == {"GPU-0"}


def link(note: Path) -> None:
    note.rename(note.with_name("elsewhere"))
    note.symlink_to(note.with_name("elsewhere"))


def pipe(note: Path) -> None:
    note.unlink()
    os.mkfifo(note)


def test_an_invalid_note_is_ignored(folder: Path) -> None:
    spoils: list[Callable[[Path], object]] = [
        link,
        pipe,
        *(partial(Path.write_text, data=text) for text in ("{", "[" * 4000, '"text"')),
        *(
            lambda note, change=change: leave(note.parent, **change)
            for change in (
                {"was_mw": "700000"},
                {"was_mw": -1},
                {"set_mw": 10**12},
                {"uuid": "GPU-1"},
                {"more": 1},
            )
        ),
    ]
    for number, spoil in enumerate(spoils):
        own_folder = folder / str(number)
        own_folder.mkdir()
        note = leave(own_folder)
        assert saved_limits(own_folder) == {"GPU-0": NOTE}
        spoil(note)
        assert saved_limits(own_folder) == {}, number


def test_a_note_of_another_user_or_limit_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He could have any limit set by who may; root's are trusted."""
    leave(folder)
    seen: Any = {"uuid": "GPU-0", "identity": {"power_limit_w": 600}}
    assert machine._limit_before(seen, saved_limits(folder)) == {}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert saved_limits(folder) == ({"GPU-0": NOTE} if os.getuid() == 0 else {})


class Guard:
    """The process that sets a limit, started as the package starts it."""

    def __init__(self, fake: Fake, folder: Path, watts: int, *gpus: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", power_limit.__name__, "set", str(folder), str(watts), *gpus],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=fake.environment,
            text=True,
        )
        assert self.process.stdout is not None
        self.first = json.loads(self.process.stdout.readline())

    def end(self, number: signal.Signals | None = None) -> tuple[int, dict[str, Any]]:
        """End it by a signal, or by its stdin; return its exit code and its last word."""
        if number:
            self.process.send_signal(number)
            self.process.wait(30)
        rest, _ = self.process.communicate(timeout=30)
        return self.process.returncode, json.loads(rest or "{}")


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_limit_lasts_until_the_process_is_to_end(
    fake: Fake, folder: Path, number: signal.Signals | None
) -> None:
    """By the end of its stdin, as where its parent died, and by each signal that asks for it."""
    guard = Guard(fake, folder, 500, "GPU-0", "GPU-1")
    during = fake.limit_w(0), fake.limit_w(1)
    code, ending = guard.end(number)

    assert guard.first == {}
    assert during == (500, 500)
    assert (fake.limit_w(0), fake.limit_w(1), saved_limits(folder)) == (700, 700, {})
    assert ending["troubles"] == []
    assert code == (128 + number if number else 0)


def test_the_limit_left_by_a_killed_process_can_be_restored(fake: Fake, folder: Path) -> None:
    """A limit that one GPU cannot have is set on none."""
    guard = Guard(fake, folder, 500, "GPU-0")
    guard.end(signal.SIGKILL)
    left = fake.limit_w(), saved_limits(folder)
    done = subprocess.run(
        [sys.executable, "-m", power_limit.__name__, "restore", str(folder), "GPU-0"],
        env=fake.environment,
        capture_output=True,
        check=True,
    )
    assert left == (500, {"GPU-0": NOTE})
    assert json.loads(done.stdout)["troubles"] == []
    assert (fake.limit_w(), saved_limits(folder)) == (700, {})

    fake.write("device", H200, "device", "limit 400 min=200 max=400")
    guard = Guard(fake, folder, 500, "GPU-0", "GPU-1")
    code, _ = guard.end()
    assert guard.first == {
        "layer": "suite",
        "refused": "power_limit_w = 500: GPU-1 allows 200 to 400 W",
    }
    assert code == 0
    assert (fake.limit_w(0), fake.limit_w(1), saved_limits(folder)) == (700, None, {})


def test_a_session_sees_the_limit_that_a_gpu_will_have_again(
    fake: Fake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    guard = Guard(fake, folder, 500, "GPU-0")
    seen = []
    for _ in ("set", "restored"):
        machine_seen = machine.detect.__wrapped__(gpus=True)
        seen.append((fake.limit_w(), [gpu["power_limit_w"] for gpu in machine_seen.gpus]))
        guard.end()

    assert seen == [(500, [700, 700]), (700, [700, 700])]
