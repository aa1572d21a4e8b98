"""The table of names, for one version."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "contracts" / "vllm_api.json").read_text("utf-8")
)
VERSION: str = os.environ.get("STANDIN_VLLM_VERSION", TABLE["read"][-1])


def names(thing: str) -> list[str]:
    """Return the names of a thing in this version."""
    version_index = TABLE["read"].index(VERSION)
    return [
        name
        for name, (first, last) in TABLE["names"][thing].items()
        if TABLE["read"].index(first) <= version_index <= TABLE["read"].index(last)
    ]


def strict(thing: str, given_names: Iterable[str]) -> None:
    """Refuse keywords that a call does not take in this version, as Python does."""
    for name in given_names:
        if name not in names(f"{thing}()"):
            raise TypeError(f"{thing}() got an unexpected keyword argument {name!r}")
