"""Read the single-turn questions of BFCL v4 from the files of bfcl-eval, without importing it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.extension import text_of

DATA = "bfcl_eval/data"
WHEEL = "bfcl_eval-2026.3.23-py3-none-any.whl"
ADVICE = f"get {WHEEL} from its source again"

SUBSET_PERCENTAGES = {
    **dict.fromkeys(
        ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel"), 62
    ),
    "parallel_multiple": 62,
    **dict.fromkeys(("live_simple", "live_multiple", "live_parallel"), 10),
    "live_parallel_multiple": 10,
    **dict.fromkeys(("irrelevance", "live_irrelevance"), 10),
}
"""Percentage of each subset's rows, from the first on, that MLPerf uses."""

MAX_FILE_BYTES = 2**26
"""Maximum bytes of an unpacked file; the largest has 4 MB."""

WHOLE = 25
"""A subset of at most this number of rows is used whole."""

TYPES = {
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}
"""JSON's types by BFCL's types; any other type becomes "string"."""


@dataclass(frozen=True, kw_only=True)
class BfclOptions(files.ChecksumOptions, dataset="bfcl", noun="questions"):
    """Options of the data set bfcl.

    Attributes:
        path: Wheel of bfcl-eval 2026.3.23 from `pip download --no-deps`, a folder with it, or the
            folder bfcl_eval/data of an installed one.
        checksum: "md5:" or "sha256:" and the hex digits of the wheel; None skips the check.
    """

    def find(self) -> Path:
        path = Path(self.path)
        for candidate in (path, path / WHEEL, path / DATA):
            is_wheel = candidate.suffix == ".whl"
            if candidate.is_file() if is_wheel else _file(candidate, "multiple").is_file():
                return candidate
        raise UnavailableError(
            f"{path}: neither {WHEEL} nor BFCL_v4_multiple.json is there; get the wheel with: pip "
            "download --no-deps bfcl-eval==2026.3.23, and set the data set's path to it"
        )


_Question = tuple[dict[str, Any], dict[str, Any]]
"""A request, and the calls with which its answer is compared."""


class BfclDataset(files.FileDataset[_Question]):
    """Chats with tools: the part of BFCL v4 that MLPerf uses for Qwen3.6 27B.

    An input has "messages", "tools" and "tool_choice", as in OpenAI's API. Subsets are sorted by
    name, as in dataset_manager/predefined/bfcl_v4 of mlcommons/endpoints on GitHub.
    """

    options = BfclOptions
    kind = b"bfcl"

    def _read(self, options: BfclOptions, source: Path) -> None:
        questions = [
            question for name in sorted(SUBSET_PERCENTAGES) for question in _subset(source, name)
        ]
        self._keep(questions, options.count, source)

    def input(self, index: int) -> dict[str, Any]:
        return dict(self._sample(index)[0])

    def reference(self, index: int) -> dict[str, Any]:
        return self._sample(index)[1]

    def _content(self, index: int) -> list[bytes]:
        return [files.encode(json.dumps(part)) for part in self._samples[index]]


def _file(source: Path, subset: str, folder: str = "") -> Any:
    name = f"BFCL_v4_{subset}.json"
    if source.suffix != ".whl":
        return source / folder / name
    return zipfile.Path(source, f"{DATA}/{folder}{'/' if folder else ''}{name}")


def _subset(source: Path, subset: str) -> Iterator[_Question]:
    rows = _rows(source, subset, ("id", "question", "function"))
    answers: dict[str, Any] = {}
    if not subset.endswith("irrelevance"):
        listed = _rows(source, subset, ("id", "ground_truth"), "possible_answer")
        answers = {str(row["id"]): row["ground_truth"] for row in listed}
    total = len(rows)
    chosen = total if total <= WHOLE else max(1, total * SUBSET_PERCENTAGES[subset] // 100)
    for number, row in enumerate(rows[:chosen]):
        try:
            question = _question(subset, row, answers.get(row["id"], []))
        except (AttributeError, KeyError, TypeError) as error:
            where = f"{_file(source, subset)}: row {number}"
            raise files.wrong(
                where, f"the row is not a question in BFCL's format ({error!r:.100})", ADVICE
            ) from error
        yield question


def _question(subset: str, row: dict[str, Any], truth: Any) -> _Question:
    functions = row["function"]
    messages = [
        {"role": message["role"], "content": message.get("content") or ""}
        for turn in row["question"]
        for message in turn
    ]
    return (
        {"messages": messages, "tools": list(map(tool_of, functions)), "tool_choice": "auto"},
        {"subset": subset, "ground_truth": truth, "func_description": functions},
    )


def _rows(source: Path, subset: str, keys: Sequence[str], folder: str = "") -> list[dict[str, Any]]:
    file: Any = source
    try:
        file = _file(source, subset, folder)
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            limit = f"{MAX_FILE_BYTES >> 20} MiB, the maximum for a file of this data set"
            raise files.wrong(file, f"it has more than {limit}", ADVICE)
        rows = [json.loads(line) for line in content.decode("utf-8").splitlines() if line.strip()]
    except (OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise files.wrong(file, f"it cannot be read ({text_of(error)[:100]})", ADVICE) from error
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(keys) - row.keys():
            defect = f"the row must be a JSON object with the keys {', '.join(keys)}"
            raise files.wrong(f"{file}: row {number}", defect, ADVICE)
    return rows


def tool_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a function of BFCL to a tool for OpenAI's API; replace dots in its name by "_"."""
    made = json.loads(json.dumps(function))
    made["name"] = made["name"].replace(".", "_")
    made["parameters"]["type"] = "object"
    _cast(made["parameters"].get("properties", {}))
    return {"type": "function", "function": made}


def _cast(properties: Mapping[str, dict[str, Any]]) -> None:
    """Replace parameter types by those of JSON schema, in place, exactly as bfcl-eval does."""
    for parameter in properties.values():
        kind = parameter.get("type")
        if kind == "float":
            parameter["format"] = "float"
            described = parameter.get("description", "")
            parameter["description"] = f"{described} This is a float type value."
        parameter["type"] = TYPES.get(str(kind), "string")
        if parameter["type"] not in ("array", "object"):
            continue
        items = parameter.get("items")
        if "properties" in parameter:
            _cast(parameter["properties"])
        elif isinstance(items, dict):
            items["type"] = TYPES.get(str(items.get("type")), "string")
            if items["type"] == "array" and isinstance(inner := items.get("items"), dict):
                inner["type"] = TYPES.get(str(inner.get("type")), "string")
            elif items["type"] == "object":
                _cast(items.get("properties", {}))
