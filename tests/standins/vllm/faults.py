"""Faults of the stand-in.

load         the model cannot be loaded
dies         the engine's process is dead at the third request
aborts       the third request is given up
silent       no request has vLLM's own stamps
early        vLLM's stamps are an hour in the future
miscounts    vLLM's own count of tokens is one too many
foreign_end  answers end with a token that does not end them
deaf         a process ignores the request to end
"""

from __future__ import annotations

from typing import Any

FAULTS = ("load", "dies", "aborts", "silent", "early", "miscounts", "foreign_end", "deaf")


def fault_of(args: Any) -> str | None:
    """Return the fault that the engine's arguments ask for."""
    fault: str | None = (args.additional_config or {}).get("fault")
    assert fault is None or fault in FAULTS
    return fault
