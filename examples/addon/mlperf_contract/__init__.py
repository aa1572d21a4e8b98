"""Speeds that were promised to customers: a fact, a criterion, a command and a report format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.extension import Command, Criterion, Format

if TYPE_CHECKING:
    from pytest_mlperf import Verdict
    from pytest_mlperf.extension import CaseResult, OptionGroup

API = 1

COMMAND = Command("what was promised, and how far above it a session is", f"{__name__}.command")
FORMAT = Format(module=f"{__name__}.report")


def mlperf_addoptions(group: OptionGroup) -> None:
    """Declare `--mlperf-contract FILE`, and the ini setting `mlperf_contract`."""
    group.add("contract", "FILE", "speeds that were promised, as TOML", convert=Path)


def mlperf_case_facts(result: CaseResult, options: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Tell beside each verdict how far the case is above what was promised."""
    from mlperf_contract.promises import margins

    lines = [str(margin) for margin in margins(options["contract"], result.verdict)]
    return {"contract": "; ".join(lines)} if lines else None


def mlperf_verdict(verdict: Verdict, options: Mapping[str, Any]) -> Criterion | None:
    """Fail a test whose speed is below what was promised, however small the drop was."""
    from mlperf_contract.promises import margins

    missed = [m for m in margins(options["contract"], verdict) if m.measured < m.promised]
    return Criterion(headline=f"contract: {missed[0]}") if missed else None
