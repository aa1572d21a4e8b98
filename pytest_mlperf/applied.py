"""Which baseline applied before, where none applies to this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_mlperf.core.baseline import Baseline, Difference, Property
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.formerly import Formerly, accepted, formerly
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.stores import baselines


def applied_before(
    loaded: Baseline | None, identity: Mapping[str, Property], root: Path, file: Path, case: Case
) -> Formerly | None:
    """Return the nearest baseline of a case that has none on this machine.

    Args:
        loaded: What the case's own file holds, or None.
        identity: Of this machine.
        root: Folder of the baselines.
        file: The case's file.
        case: The case; other counts of its accelerator are looked at where its file has no record.
    """
    own = formerly(loaded, identity) if loaded else None
    return own or min(
        _of_other_counts(root, file, case),
        key=lambda one: str(one.differences[0].theirs),
        default=None,
    )


def _of_other_counts(root: Path, file: Path, case: Case) -> Iterator[Formerly]:
    """Yield what the same case has on another number of the same accelerator."""
    _, kind = split(case.accelerator)
    behind = file.relative_to(root).parts[1:]
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name == case.accelerator or split(folder.name)[1] != kind:
            continue
        try:
            found = baselines.load(folder.joinpath(*behind))
        except BaselineError:
            continue  # damage in a file that nothing rests on
        for record in found.records[:1] if found else ():
            count = Difference(name="accelerator", theirs=folder.name, ours=case.accelerator)
            yield Formerly(date=accepted(record), differences=(count,))
