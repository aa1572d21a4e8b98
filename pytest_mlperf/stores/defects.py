"""Where a document is not what it should be, in one line."""

from __future__ import annotations

import reprlib
from typing import Any

from pydantic import ValidationError


def first_defect(raw: Any, error: ValidationError, what: str) -> str:
    """Return "records[0].runs[2].samples: must be a valid integer, not '3'"."""
    defects = error.errors(include_url=False)
    path, value = _resolve(raw, defects[0]["loc"][1:])
    match defects[0]["type"]:
        case "missing":
            text = "is missing"
        case "unexpected_keyword_argument":
            text = f"is no key of the {what}"
        case "value_error":
            text = str(defects[0]["ctx"]["error"])
        case "greater_than_equal":
            text = f"must be at least {defects[0]['ctx']['ge']:g}, not {reprlib.repr(value)}"
        case "less_than_equal":
            text = f"must be at most {defects[0]['ctx']['le']:g}, not {reprlib.repr(value)}"
        case _:
            # A value of none of several types has one entry for each.
            here = [d["msg"] for d in defects if _resolve(raw, d["loc"][1:])[0] == path]
            expected = ", ".join(msg.removeprefix("Input should be ") for msg in here)
            text = f"must be {expected}, not {reprlib.repr(value)}"
    return f"{path}: {text}" if path else text


def _resolve(raw: Any, location: tuple[int | str, ...]) -> tuple[str, Any]:
    """Follow pydantic's location of an error to the key path and the value there."""
    path = ""
    for part in location:
        if isinstance(raw, list) and isinstance(part, int):
            path += f"[{part}]"
            raw = raw[part]
        elif isinstance(raw, dict) and isinstance(part, str):
            path += f".{part}" if part.isidentifier() else f"[{part!r}]"
            raw = raw.get(part)
        else:
            break  # what follows names members of a union
    return path.removeprefix("."), raw
