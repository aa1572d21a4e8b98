"""Collect `*.judge.toml` with pytest: a test for each metric of each point."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge import report
from pytest_mlperf.addons.judge.accepted import place
from pytest_mlperf.addons.judge.command import add_arguments, failing, judged, side_of
from pytest_mlperf.addons.judge.rows import FileComparison, Row
from pytest_mlperf.extension import broken, nearest
from pytest_mlperf.stores.foreign import read_toml

TITLE = "file of judge"

KEYS = {
    **dict.fromkeys(("files", "against", "metrics", "ignore", "point"), list),
    **dict.fromkeys(("baseline", "session_by", "fail_on"), str),
    **dict.fromkeys(("limits", "columns"), dict),
    "allow_missing": bool,
}
"""Keys of a file, each an option of the command, and the types of their values."""


def parsed_file(path: Path, root: Path) -> argparse.Namespace:
    """Return the arguments of `pytest-mlperf judge` that a file defines.

    Args:
        root: The project, for baselines outside the folder of the file.

    Raises:
        MlperfError: The file is not TOML, a key or its type is wrong, or a pattern fits no file.
    """
    content = read_toml(path, TITLE)
    for key, value in content.items():
        if key not in KEYS:
            raise MlperfError(f"{path}: no key {key!r} in a {TITLE}{nearest(key, KEYS)}")
        if not isinstance(value, KEYS[key]):
            raise MlperfError(f"{path}: {key} = {value!r} is not a {KEYS[key].__name__}")
    if "files" not in content or ("against" in content) == ("baseline" in content):
        raise MlperfError(f"{path}: needs files, and either against or baseline")
    words = [*_files(path, content, "files")]
    for key in ("ignore", "point"):
        words += [word for value in content.get(key, ()) for word in (f"--{key}", str(value))]
    for key, option in (("limits", "--limit"), ("columns", "--column")):
        pairs = content.get(key, {}).items()
        words += [word for name, value in pairs for word in (option, f"{name}={value}")]
    for key in ("baseline", "session_by", "fail_on"):
        words += [f"--{key.replace('_', '-')}", content[key]] if key in content else []
    words += ["--metrics", ",".join(map(str, content.get("metrics", ())))]
    words += ["--allow-missing"] if content.get("allow_missing") else []
    if "against" in content:
        words += ["--against", *_files(path, content, "against")]
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    try:
        parsed = parser.parse_args(words)
    except argparse.ArgumentError as error:
        raise MlperfError(f"{path}: {error}") from None
    beside = parsed.baseline and (path.parent / place(parsed.baseline)).exists()
    parsed.root = path.parent if beside else root
    return parsed


def _files(path: Path, content: Mapping[str, Any], key: str) -> Iterator[str]:
    for pattern in content[key]:
        anchor = Path(str(pattern)).anchor
        folder = Path(anchor) if anchor else path.parent
        try:
            names = sorted(map(str, folder.glob(str(pattern).removeprefix(anchor))))
        except ValueError:  # the pattern is empty, or no pattern
            names = []
        if not names:
            raise MlperfError(f"{path}: {key}: no file {pattern!r} in {folder}")
        yield from names


class JudgeFile(pytest.File):
    """Collect the tests of one file."""

    def collect(self) -> Iterator[pytest.Item]:
        """Judge the files, and yield a test for each judged row."""
        try:
            parsed = parsed_file(self.path, self.config.rootpath)
            result, sides = judged(parsed, side_of(parsed, parsed.files))
        except MlperfError as error:
            raise self.CollectError(broken(str(error))) from None
        rows = [row for row in result.rows if row.outcome is not None]
        if not rows:
            raise self.CollectError(f"{self.path}: nothing could be judged")
        failed = failing(parsed.fail_on, one_session=result.one_session)
        for row in rows:
            name = broken(f"{row.tool}[{row.metric}-{row.point}]")
            item = JudgeItem.from_parent(self, name=name)
            item.row, item.result, item.sides = row, result, sides
            item.fails = row.outcome in failed
            yield item


class JudgeItem(pytest.Item):
    """Test one metric at one point."""

    row: Row
    result: FileComparison
    sides: tuple[str, str]
    fails: bool

    def runtest(self) -> None:
        """Raise JudgedError if the row's outcome fails; warn if it is undecided."""
        cells = report.cells_of(self.row)
        self.user_properties += [(f"mlperf.{name}", text) for name, text in cells.items()]
        if self.fails:
            raise JudgedError
        if self.row.outcome in report.UNDECIDED:
            with contextlib.suppress(pytest.PytestWarning):  # -W error does not fail a verdict
                self.warn(pytest.PytestWarning(self._headline()))

    def _headline(self) -> str:
        cells = report.cells_of(self.row)
        moved = f"{cells['change']} (limit {cells['limit']})" if "change" in cells else ""
        words = (str(self.row.outcome), self.row.quantity.title, moved, "at", self.row.point)
        note = f": {self.row.note}" if self.row.note else ""
        return broken(" ".join(filter(None, words)) + note)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return the verdict and how it was reached."""
        if not isinstance(excinfo.value, JudgedError):
            return super().repr_failure(excinfo, style)
        before, current = self.sides
        texts = [self._headline(), f"before {before}", f"now {current}", *self.result.changed]
        return "\n".join(broken(text[:500]) for text in (*texts, self.result.how))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file and the name of the test."""
        return self.path, 0, self.name


class JudgedError(Exception):
    """Report that the verdict on a metric fails its test."""
