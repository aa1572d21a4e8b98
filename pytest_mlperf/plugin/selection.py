"""Select the cases of a session that can run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.hardware.specs import known_classes
from pytest_mlperf.plugin.addons import EXIT_ENVIRONMENT
from pytest_mlperf.plugin.options import Options
from pytest_mlperf.reports.terminal import selection
from pytest_mlperf.suite.pairs import Testable, has_server
from pytest_mlperf.suite.values import whole_class


class Selection:
    """Select the cases that can run on this machine.

    Attributes:
        uncollected: Suites that were found but not requested by a path or `testpaths`.
        not_here: Number of deselected cases by accelerator.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._machine: Machine | None = None
        self.uncollected: list[Path] = []
        self.not_here: Counter[str] = Counter()

    def look_for(self, accelerators: set[str]) -> Machine:
        """Detect this machine's hardware; query NVML only if a case needs a GPU."""
        gpus = any(split(accelerator)[1] != "cpu" for accelerator in accelerators)
        gpus = gpus and not self._options.distributed  # which are those of nodes
        self._machine = replace(detect(gpus=gpus), shared=self._options.neighbours == "yes")
        return self._machine

    @property
    def machine(self) -> Machine:
        """Hardware of this machine; GPUs are included only after `look_for`."""
        return self._machine or detect(gpus=False)

    def is_here(self, planned: Testable) -> bool:
        """Check whether a case can run here, and count it if not; with --mlperf-plan all can."""
        required, pretended = self._options.accelerator, self._options.pretend
        here = self._options.distributed or all(
            name == pretended or self.machine.has(name) or has_server(planned)
            for name in planned.accelerators
        )
        if here and (required is None or required in planned.accelerators):
            return True
        self.not_here[planned.case.accelerator] += 1
        return self._plans_all

    @property
    def _plans_all(self) -> bool:
        options = self._options
        return options.plan and not (options.accelerator or options.pretend)

    def require_accelerator(self) -> None:
        """Exit with code 3 if this machine lacks the accelerator of `--mlperf-accelerator`."""
        name = str(self._options.accelerator)
        if self._options.distributed:
            return  # whoever sees the nodes of the cluster does
        if not self.look_for({name}).has(name) and name != self._options.pretend:
            kind, classes = whole_class(split(name)[1]), known_classes().values()
            hint = "" if kind in classes else nearest(kind, classes)
            pytest.exit(
                f"mlperf: accelerator {name} is required, but not on this machine; available: "
                f"{self.machine.seen}{hint}",
                returncode=EXIT_ENVIRONMENT,
            )

    @property
    def notices(self) -> tuple[dict[str, int], list[str]]:
        """Counts of deselected cases by accelerator, and uncollected suites, to send by xdist."""
        return dict(self.not_here), list(map(str, self.uncollected))

    def take(self, not_here: Mapping[str, int], uncollected: Sequence[str]) -> None:
        """Store an xdist worker's deselected cases by accelerator, and its uncollected suites."""
        self.not_here = Counter(not_here)
        if not_here and self._machine is None:
            self.look_for(set(not_here))  # for why they are not here
        self.uncollected = [Path(path) for path in uncollected]

    def lines(self, width: int) -> list[str]:
        """Return lines on deselected cases and uncollected suites for the summary."""
        if not (self.uncollected or self.not_here):
            return []
        action = "planned" if self._plans_all else "deselected"
        return selection.notices(
            self.uncollected, self.not_here, self.machine.seen, width, action=action
        )
