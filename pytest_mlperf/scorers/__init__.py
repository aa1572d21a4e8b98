"""Scorers equal to MLPerf's reference scripts, one module each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError, SuiteError


def require_outputs(scorer: str, outputs: Sequence[bytes], references: Sequence[Any]) -> None:
    """Refuse to score nothing, or not as many outputs as references."""
    if not len(outputs) or len(outputs) != len(references):
        raise RunError(
            "scorer",
            f"scorer {scorer}: got {len(outputs)} outputs for {len(references)} references; it "
            "needs one output per reference, and at least one",
        )


def require_choice(scorer: str, option: str, value: object, valid: Collection[str]) -> None:
    """Refuse an option that is none of the valid values."""
    if value not in valid:
        raise SuiteError(
            f"scorer {scorer}: {option} = {value!r} is unknown; valid are {', '.join(valid)}",
            option=option,
        )
