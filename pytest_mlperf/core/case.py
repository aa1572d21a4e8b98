"""A case: what is measured and judged as one, and how it is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pytest_mlperf.core.errors import BaselineError

ScenarioName = Literal["Offline", "Server", "Interactive", "SingleStream", "MultiStream"]
Profile = Literal["quick", "official"]
Division = Literal["closed", "open"]
Kind = Literal["accuracy", "performance", "efficiency", "pair"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+]*(-[A-Za-z0-9._+]+)*")
"""Names appear in test ids, on the command line and as file names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One workload x scenario x engine x precision x accelerator.

    Attributes:
        workload: Workload name, e.g. "llama2-70b-99.9".
        scenario: MLPerf scenario.
        engine: Name of the suite's engine entry (not the engine's kind).
        precision: The suite's word, e.g. "fp8".
        accelerator: Class and count: "H200", "8xH100", "cpu".
    """

    workload: str
    scenario: ScenarioName
    engine: str
    precision: str
    accelerator: str

    @property
    def id(self) -> str:
        """The text between the brackets of a test id."""
        return "-".join(
            (self.workload, self.scenario, self.engine, self.precision, self.accelerator)
        )


def path_part(what: str, name: str) -> str:
    """Return a name that becomes one part of a path, where it may.

    Names also come from files that were made elsewhere: whatever builds a path of them asks here,
    so that none leads out of its folder.

    Args:
        what: What it names, for the message: "workload".
        name: The name.

    Raises:
        BaselineError: It is no plain name.
    """
    if NAME.fullmatch(name):
        return name
    shown = name if len(name) <= 60 else f"{name[:60]}..."
    raise BaselineError(
        f"{what} {shown!r} cannot be part of a file's path: letters, digits, '.', '_', '+' and "
        "single inner '-' only"
    )
