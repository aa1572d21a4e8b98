"""Collect `*.judge.toml` with pytest: one test per metric of each task or concurrency."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge import report
from pytest_mlperf.addons.judge.accepted import baseline_file
from pytest_mlperf.addons.judge.command import add_arguments, compare_runs, failing, side_of
from pytest_mlperf.extension import CaseResult, broken, nearest
from pytest_mlperf.stores.foreign import read_toml

TITLE = "file of judge"

KEYS = {
    **dict.fromkeys(("files", "against", "metrics", "ignore", "point"), list),
    **dict.fromkeys(("baseline", "session_by", "fail_on"), str),
    **dict.fromkeys(("limits", "columns"), dict),
    "allow_missing": bool,
}
"""Keys of a file, each an option of the command, and the types of their values."""

TYPE_NAMES = {list: "a list", str: "a text in quotes", dict: "a table", bool: "true or false"}


def parsed_file(path: Path, root: Path) -> argparse.Namespace:
    """Return the arguments of `pytest-mlperf judge` that a file defines.

    Args:
        root: Project folder, where the baseline is searched if it is not next to the file.

    Raises:
        MlperfError: The file is not TOML, a key or a type is wrong, or a pattern matches no file.
    """
    content = read_toml(path, TITLE)
    for key, value in content.items():
        if key not in KEYS:
            raise MlperfError(f"{path}: no key {key!r} in a {TITLE}{nearest(key, KEYS)}")
        if not isinstance(value, KEYS[key]):
            raise MlperfError(f"{path}: {key} = {value!r} is not {TYPE_NAMES[KEYS[key]]}")
    if "files" not in content or ("against" in content) == ("baseline" in content):
        raise MlperfError(f"{path}: set files, and either against or baseline")
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    try:
        parsed = parser.parse_args(list(_words(path, content)))
    except argparse.ArgumentError as error:
        raise MlperfError(f"{path}: {error}") from None
    beside = parsed.baseline and (path.parent / baseline_file(parsed.baseline)).exists()
    parsed.root = path.parent if beside else root
    return parsed


def _words(path: Path, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments of `pytest-mlperf judge` for the content of a judge file."""
    yield from _files(path, content, "files")
    if "against" in content:
        yield from ("--against", *_files(path, content, "against"))
    for key in sorted(content.keys() - {"files", "against"}):
        value, option = content[key], f"--{key.replace('_', '-')}"
        if isinstance(value, dict):  # limits, columns
            yield from (f"{option[:-1]}={name}={text}" for name, text in value.items())
        elif isinstance(value, list):
            parts = [",".join(map(str, value))] if key == "metrics" else value
            yield from (f"{option}={text}" for text in parts)
        elif value is not False:
            yield option if value is True else f"{option}={value}"


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
    """Collect the tests of one `*.judge.toml` file."""

    def collect(self) -> Iterator[pytest.Item]:
        """Judge the result files; yield one test per metric and task or concurrency."""
        from pytest_mlperf.addons.judge.results import case_result
        from pytest_mlperf.plugin.session import session_state as session_of

        try:
            parsed = parsed_file(self.path, self.config.rootpath)
            result, sides = compare_runs(parsed, side_of(parsed, parsed.files))
        except MlperfError as error:
            raise self.CollectError(broken(str(error))) from None
        rows = [row for row in result.rows if row.outcome is not None]
        if not rows:
            raise self.CollectError(f"{self.path}: nothing to judge; see pytest-mlperf judge FILES")
        session_of(self.config)  # which reports results at the end
        failed = failing(parsed, result)
        for row in rows:
            name = broken(f"{row.tool}[{row.metric}-{row.point}]")
            item = JudgeItem.from_parent(self, name=name)
            of_row = replace(result, rows=(row,))
            item.result = case_result(of_row, sides, failed, test=item.nodeid)
            item.message = report.failure(row, result, sides, width=100)
            yield item


class JudgeItem(pytest.Item):
    """Report the verdict on one metric of one task or concurrency as a pytest test."""

    result: CaseResult
    message: str

    def runtest(self) -> None:
        """Attach the result to pytest's report; fail the test if the outcome is a failing one."""
        from pytest_mlperf.plugin.report_json import put

        if put(self, self.result).failed:
            pytest.fail(self.message, pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file, line 0, and the name of the test, for pytest's report."""
        return self.path, 0, self.name
