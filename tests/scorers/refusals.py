"""Calls that must end with an error, and what differs from it: all of a table at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pytest_mlperf.core.errors import MlperfError, RunError


def differences(
    call: Callable[..., object], error: type[MlperfError], rows: Iterable[tuple[Any, ...]]
) -> list[str]:
    """Call with the values of each row but the last, which is a pattern of the error's message.

    A RunError must name the scorer as its layer.
    """
    found = []
    for *values, pattern in rows:
        try:
            call(*values)
        except error as caught:
            if not re.search(pattern, str(caught)):
                found.append(f"{str(caught)!r} does not match {pattern!r}")
            elif isinstance(caught, RunError) and caught.layer != "scorer":
                found.append(f"{str(caught)!r} has the layer {caught.layer!r}")
        else:
            found.append(f"no {error.__name__} matches {pattern!r}")
    return found
