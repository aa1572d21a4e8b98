"""What no measurement tells of a submission: a folder that `submission init` makes, filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.stores.foreign import read_foreign

MARK = "FILL IN"
"""Begins what is still to be filled in."""

SYSTEM_FILE, IMPLEMENTATION_FILE = "system.json", "implementation.json"
README, CALIBRATION = "README.md", "calibration.md"
SOURCE_FOLDER = "src"

DIVISIONS = ("closed", "open")
FOLDER_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
"""Names of folders: MLPerf's checker takes no blanks and no hidden ones."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Who submits what.

    Attributes:
        system: The id that names folders and the description's file.
        description: Keys of systems/<system>.json.
        implementation: Keys of measurements.json.
        source: Files of the code by relative path.
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
        """The folder of the division: "closed"."""
        return str(self.description.get("division", "")).lower()

    @property
    def submitter(self) -> str:
        """The folder of the submitter."""
        return str(self.description.get("submitter", ""))

    @property
    def top(self) -> str:
        """The folder of all that this submitter has in this division."""
        return f"{self.division}/{self.submitter}"

    def blanks(self) -> Iterator[str]:
        """Yield what is still to be filled in, with its file."""
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
    """Read what `submission init` made; an MlperfError says what is missing or cannot be."""
    if not folder.is_dir():
        raise MlperfError(
            f"{folder} is no folder: make one with pytest-mlperf submission init, and fill it in"
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
        raise MlperfError(f"{folder / SYSTEM_FILE}: division is {named!r}; it is closed or open")
    for key, name in (("id", form.system), ("submitter", form.submitter)):
        if not FOLDER_PATTERN.fullmatch(name):
            raise MlperfError(
                f"{folder / SYSTEM_FILE}: {key} is {name!r}, which names a folder: letters, "
                "digits, "
                "'_', '.', '+' and inner '-' only, 64 at most"
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
    """Return the files of the code; what git and Python keep for themselves is left out."""
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
    """Return a JSON file as people edit it."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
