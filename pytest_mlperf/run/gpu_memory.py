"""Wait before a model is loaded until earlier processes have freed the GPUs' memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.untrusted_text import broken, some
from pytest_mlperf.hardware.leases import file_name
from pytest_mlperf.hardware.memory import GpuMemory, wait_for_memory
from pytest_mlperf.stores import atomic

MEMORY_FREE_SECONDS = 60.0
"""Time for an ended process to release its memory; most take seconds."""

GIB = 1 << 30

MAX_LISTED_HOLDERS = 3


def require_free(
    gpus: Sequence[str],
    folder: Path,
    *,
    limit_s: float = MEMORY_FREE_SECONDS,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Wait until earlier processes have freed the memory of GPUs; raise RunError if they do not.

    MPI ranks, and workers in sessions of their own, end after their process group and free memory
    even later. `gpus` are UUIDs that the caller has leased. The memory must be as free as before
    the session's first load, which is recorded in its `folder`. `waiting` gets a message.
    """
    if not gpus:
        return
    places = {uuid: folder / ".memory" / file_name(uuid) for uuid in gpus}
    least_taken = {uuid: _noted(place) for uuid, place in places.items()}
    last = wait_for_memory(least_taken, limit_s if None in least_taken.values() else 0.0)
    if held := [uuid for uuid, taken_now in last.items() if not taken_now["free"]]:
        waiting(f"waiting for the last process on {', '.join(held)} to free its GPU memory")
        last = wait_for_memory(least_taken, limit_s)
    for uuid, taken_now in last.items():
        used, least = taken_now["used"], least_taken[uuid]
        if least is not None and used is not None and not taken_now["free"]:
            raise RunError("worker", _sentence(uuid, used, least, taken_now, limit_s))
        if used is not None and (least is None or used < least):
            try:
                atomic.write_text(places[uuid], f"{used}\n")
            except OSError as error:
                text = f"{places[uuid]} cannot be written: {error.strerror}"
                raise RunError("worker", text) from None


def _noted(file: Path) -> int | None:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _sentence(uuid: str, used: int, least: int, memory: GpuMemory, limit_s: float) -> str:
    holders = list(_holders(memory))
    who = f" by {some(holders, MAX_LISTED_HOLDERS)}" if holders else ""
    return (
        f"{uuid} has {used / GIB:.1f} GiB in use{who}, {limit_s:g} s after this session's previous "
        f"process on it ended; before, {least / GIB:.1f} GiB were in use: the next model may not "
        "fit. End the process that holds the memory (see nvidia-smi)"
    )


def _holders(memory: GpuMemory) -> Iterator[str]:
    for pid, used in memory["processes"]:
        name = ""
        with contextlib.suppress(OSError):  # ended, or outside this container
            name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
        size = "" if used is None else f" with {used / GIB:.1f} GiB"
        yield f"process {pid}" + (f" ({broken(name)})" if name else "") + size
