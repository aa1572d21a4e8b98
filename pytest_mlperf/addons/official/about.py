"""Read the TOML file that describes an MLPerf Endpoints submission and its system."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.extension import nearest
from pytest_mlperf.rounds.endpoints import endpoint_rules
from pytest_mlperf.stores.foreign import read_toml

ABOUT_TABLES = ("submission", "point", "system", "power")

FOLDER_PATTERN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class About:
    """Describe the submitter and the system, with the keys of MLCommons' files.

    Attributes:
        system, implementation: Folder names below results/ and src/.
        point: Content of every point.yaml.
        description: Content of every system_desc.json.
        power: Content of system_power.json; empty if power was not measured.
    """

    system: str
    implementation: str
    point: Mapping[str, Any]
    description: Mapping[str, Any]
    power: Mapping[str, Any]

    @property
    def model(self) -> str:
        """Name of the benchmark, also the name of the curve's folder."""
        return str(self.point["model_name"])

    @property
    def highest(self) -> int:
        """Maximum concurrency that the system description declares."""
        return int(self.description["max_supported_concurrency"])


def read_about(path: Path) -> About:
    """Read the description of an MLPerf Endpoints submission; raise MlperfError for all defects."""
    raw = _tables(path)
    if missing := list(_missing(raw)):
        raise MlperfError(
            f"{path}: fill in these values, which MLPerf Endpoints requires: {', '.join(missing)}"
        )
    about = About(
        system=raw["submission"]["system"],
        implementation=raw["submission"]["implementation"],
        point=raw["point"],
        description=raw["system"],
        power=raw.get("power", {}),
    )
    for key, name in (
        ("submission.system", about.system),
        ("submission.implementation", about.implementation),
        ("point.model_name", about.point["model_name"]),
    ):
        if not isinstance(name, str) or not FOLDER_PATTERN.fullmatch(name):
            raise MlperfError(
                f"{path}: {key} is {quoted(str(name))}, which cannot be a folder name: use only "
                "letters, digits, - and _"
            )
    highest = about.description["max_supported_concurrency"]
    lowest = endpoint_rules()["curve"]["ultra_low"]
    if type(highest) is not int or highest <= lowest:
        raise MlperfError(
            f"{path}: system.max_supported_concurrency is {highest!r}; it must be a number "
            f"of requests above {lowest}"
        )
    return about


def _tables(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise MlperfError(f"{path} does not exist; --skeleton writes one to fill in")
    content = read_toml(path, "description of a system")
    for name, table in content.items():
        if name not in ABOUT_TABLES:
            raise MlperfError(
                f"{path}: there is no table {quoted(name)}{nearest(name, ABOUT_TABLES)}"
            )
        if not isinstance(table, dict):
            raise MlperfError(f"{path}: {name} must be a table, not {quoted(str(table))}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(content, default=str, allow_nan=False))
    except ValueError as error:
        raise MlperfError(f"{path}: {error}") from None
    return plain


def _missing(raw: Mapping[str, Any]) -> Iterator[str]:
    required = endpoint_rules()["bundle"]
    for table in ("submission", "point", "system"):
        yield from _absent(raw.get(table, {}), required[table], table)
    nodes = raw.get("system", {}).get("node_types") or []
    for number, node in enumerate(nodes if isinstance(nodes, list) else [nodes]):
        where = f"system.node_types[{number}]"
        yield from _absent(node if isinstance(node, dict) else {}, required["node"], where)


def _absent(table: Mapping[str, Any], keys: Sequence[str], where: str) -> Iterator[str]:
    return (f"{where}.{key}" for key in keys if table.get(key) in ("", None, []))
