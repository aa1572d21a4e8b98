"""Set the power limit of GPUs for a case, then restore each GPU's previous one.

    python -m pytest_mlperf.hardware.power_limit set FOLDER WATTS UUID ...
    python -m pytest_mlperf.hardware.power_limit restore FOLDER UUID ...

`set` prints a report, waits until its stdin closes or a signal arrives, then restores the limits.
It first saves the previous limit in a file in FOLDER, so that `restore` works even if `set` was
killed. A limit that another process has changed since then is not restored. NVML stays open,
because a driver that is unloaded forgets power limits.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_mlperf.hardware import _nvml
from pytest_mlperf.hardware.leases import file_name
from pytest_mlperf.stores.atomic import opened_folder

NOTE_SUFFIX = ".power-limit.json"

MAX_NOTE_BYTES, MAX_MILLIWATTS = 4096, 10_000_000
"""Bounds of a valid note: its size, and its power limits."""

OFF_MW = 1000
"""Tolerance between a power limit that was set and the value read back [mW]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitNote:
    """Record a GPU's power limits [mW]: configured and enforced before a case, and set for it."""

    uuid: str
    was_mw: int
    enforced_mw: int
    set_mw: int


class Refused(Exception):
    """Report that a limit cannot be set; `layer` is the cause: "suite", "permission" or "gpu"."""

    def __init__(self, layer: str, text: str) -> None:
        super().__init__(text)
        self.layer = layer


# --- notes -----------------------------------------------------------------------------------


def saved_limits(folder: Path) -> dict[str, LimitNote]:
    """Return the saved power limits in a folder, by GPU UUID."""
    with contextlib.suppress(OSError):
        files = [path for path in folder.iterdir() if path.name.endswith(NOTE_SUFFIX)]
        return {note.uuid: note for note in map(_read, files) if note}
    return {}


def _read(path: Path) -> LimitNote | None:
    try:
        # Anyone may write to the folder: do not follow links or wait for pipes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid not in {0, os.geteuid()}:
                return None
            note = LimitNote(**json.loads(file.read(MAX_NOTE_BYTES)))
        watts = (note.was_mw, note.enforced_mw, note.set_mw)
        right = all(type(mw) is int and 0 < mw <= MAX_MILLIWATTS for mw in watts)
        return note if right and path.name == file_name(note.uuid) + NOTE_SUFFIX else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _write(folder: Path, note: LimitNote) -> None:
    path = folder / (file_name(note.uuid) + NOTE_SUFFIX)
    draft = f".{path.name}.{os.getpid()}"
    try:
        with opened_folder(folder) as descriptor:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=descriptor)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(
                os.open(draft, flags, 0o600, dir_fd=descriptor), "w", encoding="utf-8"
            ) as file:
                os.fchmod(file.fileno(), 0o644)
                json.dump(asdict(note), file)
            os.replace(draft, path.name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    except OSError as error:
        raise Refused(
            "gpu",
            f"the power limit of {note.uuid} was not changed, because the present one cannot be "
            f"saved in {path}: {error.strerror}; make the folder writable",
        ) from None


def _forget(folder: Path, uuid: str) -> None:
    with contextlib.suppress(OSError), opened_folder(folder) as descriptor:
        os.unlink(file_name(uuid) + NOTE_SUFFIX, dir_fd=descriptor)


CAP_SYS_ADMIN = 21
"""Bit of the capability that NVIDIA's driver requires to set a limit."""


def may_set(proc: Path = Path("/proc")) -> bool:
    """Return whether this process has CAP_SYS_ADMIN, which setting a power limit requires."""
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        rows = (proc / "self/status").read_text("ascii").splitlines()
        mask = next(row.split()[1] for row in rows if row.startswith("CapEff:"))
        return bool(int(mask, 16) >> CAP_SYS_ADMIN & 1)
    return False


# --- limits ----------------------------------------------------------------------------------


def set_limit(device: _nvml.NvmlDevice, watts: int, folder: Path) -> None:
    """Save a GPU's power limit in `folder`, then set a new one; raise Refused if that fails."""
    nvml, handle, uuid = device.library.nvml, device.handle, device.uuid
    if device.instance or device.instances != 0:
        raise Refused(
            "suite",
            f"power_limit_w = {watts}: {uuid} is divided by MIG, and all instances share one power "
            "limit; remove power_limit_w",
        )
    read = partial(_nvml.call_nvml, nvml, quantity="limit_range_mw")
    low, high = read(nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    if not low <= watts * 1000 <= high:
        takes = f"{low / 1000:g} to {high / 1000:g} W"
        raise Refused("suite", f"power_limit_w = {watts}: {uuid} allows {takes}")
    was = read(nvml.nvmlDeviceGetPowerManagementLimit, handle)
    enforced = read(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    if abs(was - watts * 1000) > OFF_MW:
        _write(folder, LimitNote(uuid=uuid, was_mw=was, enforced_mw=enforced, set_mw=watts * 1000))
        try:
            _nvml.call_nvml(nvml, nvml.nvmlDeviceSetPowerManagementLimit, handle, watts * 1000)
        except nvml.NVMLError as error:
            _forget(folder, uuid)
            raise _refusal(error, uuid, watts) from None
        enforced = read(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    if abs(enforced - watts * 1000) > OFF_MW:
        raise Refused(
            "gpu",
            f"{uuid}: the power limit was set to {watts} W, but {enforced / 1000:g} W is in "
            "force; see what else limits it: nvidia-smi -q -d POWER",
        )


def _refusal(error: Any, uuid: str, watts: int) -> Refused:
    if error.value == _nvml.NO_PERMISSION:
        return Refused(
            "permission",
            f"power_limit_w = {watts}: this user may not set the power limit of {uuid}; run as "
            f"root (CAP_SYS_ADMIN), or have it set before: sudo nvidia-smi -i {uuid} -pl {watts}",
        )
    if error.value == _nvml.NOT_SUPPORTED:
        text = f"power_limit_w = {watts}: {uuid} has no power limit that can be set"
        return Refused("suite", f"{text}; remove power_limit_w")
    return Refused(
        "gpu", f"the power limit of {uuid} could not be set to {watts} W: {_nvml.words(error)}"
    )


def restore(library: _nvml.NvmlLibrary, note: LimitNote, folder: Path) -> str:
    """Restore a GPU's saved power limit and delete its file; return a message, or raise Refused."""
    nvml, uuid = library.nvml, note.uuid
    read = partial(_nvml.call_nvml, nvml, quantity="limit_range_mw")
    old, new = f"{note.was_mw / 1000:g} W", f"{note.set_mw / 1000:g} W"
    try:
        handle = _nvml.call_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
        current = read(nvml.nvmlDeviceGetPowerManagementLimit, handle)
        done = f"{uuid}: power limit restored from {new} to {old}"
        if abs(current - note.set_mw) > OFF_MW:
            done = (
                f"{uuid} keeps its power limit of {current / 1000:g} W, which another process set"
            )
        else:
            _nvml.call_nvml(nvml, nvml.nvmlDeviceSetPowerManagementLimit, handle, note.was_mw)
            current = read(nvml.nvmlDeviceGetPowerManagementLimit, handle)
            if abs(current - note.was_mw) > OFF_MW:
                raise Refused(
                    "gpu",
                    f"{uuid}: the power limit was set back to {old}, but is {current / 1000:g} W; "
                    f"run: sudo nvidia-smi -i {uuid} -pl {note.was_mw / 1000:g}",
                )
    except nvml.NVMLError as error:
        raise Refused(
            "gpu",
            f"{uuid}: the power limit that a case set ({new}) was not restored to {old} "
            f"({_nvml.words(error)}); run: sudo nvidia-smi -i {uuid} -pl {note.was_mw / 1000:g}",
        ) from None
    _forget(folder, uuid)
    return done


def restore_all(
    library: _nvml.NvmlLibrary, uuids: Sequence[str], folder: Path
) -> dict[str, list[str]]:
    """Restore these GPUs' saved power limits; return messages: "done" and (errors) "troubles"."""
    done: list[str] = []
    troubles: list[str] = []
    notes = saved_limits(folder)
    for uuid in filter(notes.__contains__, uuids):
        try:
            done.append(restore(library, notes[uuid], folder))
        except Refused as error:
            troubles.append(str(error))
    return {"done": done, "troubles": troubles}


# --- the process -----------------------------------------------------------------------------

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hold_limit(library: _nvml.NvmlLibrary, uuids: Sequence[str], watts: int, folder: Path) -> bool:
    """Set a power limit [W] on GPUs until stdin closes; return whether all limits were restored."""
    try:
        refused = _set_all(library, uuids, watts, folder)
        _print_line({"layer": refused.layer, "refused": str(refused)} if refused else {})
        if not refused:
            sys.stdin.buffer.read()
    finally:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        restored = restore_all(library, uuids, folder)
        _print_line(restored)
    return not restored["troubles"]


def _set_all(
    library: _nvml.NvmlLibrary, uuids: Sequence[str], watts: int, folder: Path
) -> Refused | None:
    try:
        for uuid in uuids:
            set_limit(_nvml.find(library, uuid), watts, folder)
    except Refused as error:
        return error
    except _nvml.UnavailableNvml as error:
        return Refused("gpu", str(error))
    except library.nvml.NVMLError as error:
        return Refused("gpu", f"the power limit cannot be set: {_nvml.words(error)}")
    return None


def _print_line(answer: object) -> None:
    with contextlib.suppress(OSError):  # the parent may be gone
        print(json.dumps(answer), flush=True)


def main() -> None:
    """Set power limits of GPUs until stdin closes, or restore them; exit with 1 if one remains."""
    command, folder, *rest = sys.argv[1:]
    for number in END_SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with contextlib.closing(_nvml.NvmlLibrary(_nvml.binding())) as library:
            if command == "set":
                restored_all = hold_limit(library, rest[1:], int(rest[0]), Path(folder))
            else:
                restored = restore_all(library, rest, Path(folder))
                _print_line(restored)
                restored_all = not restored["troubles"]
    except _nvml.UnavailableNvml as error:
        raise SystemExit(str(error)) from None
    raise SystemExit(not restored_all)


if __name__ == "__main__":
    main()
