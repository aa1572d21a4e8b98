"""Read the folder that `submission init` creates and the user fills in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.stores.foreign import read_foreign

MARK = "FILL IN"
"""Prefix of a value that the user still has to fill in."""

SYSTEM_FILE, IMPLEMENTATION_FILE = "system.json", "implementation.json"
README, CALIBRATION = "README.md", "calibration.md"
SOURCE_FOLDER = "src"

DIVISIONS = ("closed", "open")
FOLDER_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
"""Allowed names of folders; MLPerf's checker rejects spaces and hidden folders."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Hold the filled-in form of a submission: submitter, system and code.

    Attributes:
        system: System id, used in folder and file names.
        description: Content of systems/<system>.json.
        implementation: Content of measurements.json.
        readme, calibration: Texts of README.md and calibration.md.
        source: Source code files by relative path.
    """

    folder: Path
    system: str
    description: Mapping[str, object]
    implementation: Mapping[str, object]
    readme: str
    calibration: str
    source: Mapping[str, Path]

    @property
    def division(self) -> str:
        """Name of the division and of its folder: "closed" or "open"."""
        return str(self.description.get("division", "")).lower()

    @property
    def submitter(self) -> str:
        """Name of the submitter and of its folder."""
        return str(self.description.get("submitter", ""))

    @property
    def top(self) -> str:
        """Path of the submitter's folder in the division: "closed/Acme"."""
        return f"{self.division}/{self.submitter}"

    def blanks(self) -> Iterator[str]:
        """Yield the fields that are not filled in, each with its file."""
        for name, content in (
            (SYSTEM_FILE, self.description),
            (IMPLEMENTATION_FILE, self.implementation),
        ):
            for key, value in content.items():
                if str(value).startswith(MARK):
                    yield f"{self.folder / name}: {key}"
        for name, text in ((README, self.readme), (CALIBRATION, self.calibration)):
            if MARK in text:
                yield f"{self.folder / name}: the line with {MARK}"


def read_form(folder: Path) -> Form:
    """Read the form from a folder; raise MlperfError for missing or invalid values."""
    if not folder.is_dir():
        raise MlperfError(
            f"{folder} is not a folder: create it with pytest-mlperf submission init; fill it in"
        )
    description = _table(folder / SYSTEM_FILE)
    system = description.pop("id", "")
    form = Form(
        folder=folder,
        system=str(system),
        description=description,
        implementation=_table(folder / IMPLEMENTATION_FILE),
        readme=_text(folder / README),
        calibration=_text(folder / CALIBRATION),
        source=_source(folder / SOURCE_FOLDER),
    )
    if form.division not in DIVISIONS:
        named = description.get("division")
        raise MlperfError(f"{folder / SYSTEM_FILE}: division is {named!r}; set closed or open")
    for key, name in (("id", form.system), ("submitter", form.submitter)):
        if not FOLDER_PATTERN.fullmatch(name):
            raise MlperfError(
                f"{folder / SYSTEM_FILE}: {key} is {name!r}, which is not a folder name: use only "
                "letters, digits, '_', '.', '+' and inner '-', at most 64"
            )
    return form


def _table(path: Path) -> dict[str, object]:
    raw = read_foreign(path, "form of a submission")
    if not isinstance(raw, dict) or not all(
        isinstance(v, str | int | float | bool) for v in raw.values()
    ):
        raise MlperfError(f"{path}: must be one JSON object of texts and numbers")
    return dict(raw)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MlperfError(f"{path} cannot be read: {error}") from None


def _source(folder: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
            continue
        if path.is_symlink():
            raise MlperfError(f"{path} is a link: put the file itself there")
        if path.is_file():
            files[inside.as_posix()] = path
    if not files:
        raise MlperfError(f"{folder} is empty: the code that was measured belongs there")
    return files


def json_file(content: Mapping[str, object]) -> bytes:
    """Return the content of a JSON file, indented."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
