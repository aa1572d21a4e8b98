"""Test that the tutorial and the how-to pages show the output that their commands print."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest

from pytest_mlperf.cli import build_parser
from pytest_mlperf.core.errors import MlperfError
from tests.docs.console import (
    MASKS,
    BusyMachineError,
    Fence,
    Reader,
    agrees,
    fences,
    masked,
)
from tests.docs.pages import DOCS, SITE_PAGES, guides

NOT_RUN = {
    "another-python.md": 1,
    "bisect.md": 1,
    "calibration.md": 1,
    "endpoints.md": 2,
    "extending.md": 2,
    "openai.md": 1,
    "own-model.md": 1,
    "submission.md": 1,
    "tensorrt-llm.md": 2,
    "triton.md": 1,
    "tutorial.md": 1,
    "upgrade.md": 3,
    "vllm-in-ci.md": 1,
}
"""Fences of commands that cannot be run here, by page: one more is a decision."""

OF_READERS = "contract"
"""The command that readers of docs/extending.md write, and the option `--mlperf-contract`."""

REASONS = {
    "needs a GPU",
    "needs other environments",
    "needs TensorRT-LLM's sources",
    "needs the network",
    "needs the repository",
}

COMMENT = re.compile(r"<!-- (not run: .+|(needs: \w+, )?exits with \d+|needs: \w+|before: .+) -->")


def consoles(page: Path) -> list[Fence]:
    return [one for one in fences(page.read_text("utf-8")) if one.info == "console"]


PAGES = [page for page in guides() if any(not one.not_run for one in consoles(page))]


def follow(page: Path, folder: Path) -> None:
    """Run a page in a new folder."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (folder / "reader").mkdir()
    reader = Reader(folder / "reader", folder / "site")
    try:
        reader.follow(page.read_text("utf-8"))
    except BusyMachineError as busy:
        pytest.skip(str(busy))
    finally:
        assert not reader.differences, "\n\n".join([f"{page.name}:", *reader.differences])


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs_as_written(page: Path, tmp_path: Path) -> None:
    if page.name == "own-model.md":
        pytest.importorskip("onnxruntime", reason="needs pytest-mlperf[onnx]")
        pytest.importorskip("onnx", reason="makes a model")
    if page.name == "own-engine.md":
        pytest.importorskip("setuptools", reason="builds a package")
    follow(page, tmp_path)


@pytest.mark.process
def test_a_short_page_runs_as_written(tmp_path: Path) -> None:
    """Its command measures nothing, and prints the same anywhere."""
    follow(DOCS / "limits.md", tmp_path)


def test_every_command_that_is_shown_is_one_that_is_taken() -> None:
    whole, _ = build_parser()
    refused, count = [], 0
    for page in SITE_PAGES:
        for command in (command for fence in consoles(page) for command in fence.commands()):
            words = shlex.split(command.text.replace("\\\n", " "), comments=True)
            if words[:1] != ["pytest-mlperf"] or words[1] == OF_READERS:
                continue
            count += 1
            end = next((i for i, word in enumerate(words) if word in {"|", ">", "&&", ";"}), None)
            try:
                whole.parse_args(words[1:end])
            except (SystemExit, MlperfError):
                refused.append(f"{page.name}:{command.line}: {command.text}")

    assert refused == []
    assert count > 30


def test_skipped_fences_are_listed() -> None:
    """By page, with one of few reasons; `pytest -rP` lists it."""
    left_out = [(page.name, one) for page in guides() for one in consoles(page) if one.not_run]
    for name, fence in left_out:
        print(f"docs/{name}:{fence.line}: not run: {fence.not_run}")

    assert Counter(name for name, _ in left_out) == Counter(NOT_RUN)
    assert {one.not_run for _, one in left_out} == REASONS


def test_every_comment_above_a_fence_is_one_that_is_read() -> None:
    """A spelling mistake would run what must not be; and commands are shown after a prompt."""
    comments = [one.comment for page in guides() for one in consoles(page) if one.comment]
    assert [text for text in comments if not COMMENT.fullmatch(text)] == []
    bare = [
        f"{page.name}:{one.line}"
        for page in guides()
        for one in consoles(page)
        if not one.body or not one.body[0].startswith("$ ")
    ]
    assert bare == []


AGREEING = [
    ("samples/s   1,148   +3.4 %  ok", "samples/s   998.3   −3.4 %  ok"),
    ("2 tests: 2 ok; 2 runs, 17 s", "2 tests: 2 ok; 3 runs, 9.1 s"),
    ("runs/20261121-044418-1ce8/x.2", "runs/20270101-000000-ffff/x.2"),
    ("set 2026-11-21 at 18b55b013305+", "set 2027-01-01 at 0000000000ab"),
    ("1 passed in 7.12s", "1 passed in 0.99s"),
    ("=== mlperf ===", "========= mlperf ========="),
    ("a\n...\nd", "a b c\nd"),
    ("a\n...", "a"),
    ("...\nd", "c\nd"),
    ("a\n...\nd", "a\nd"),
    ("one  two", "one\n      two"),
]
"""What a page shows, and what differs from it as runs do."""

DIFFERING = [
    ("performance  ok", "performance  PERF DROP"),
    ("2 tests: 2 ok", "2 tests: 1 ok"),
    ("samples/s", "tokens/s"),
    ("a b", "a"),
    ("a", "a b"),
    ("a\n...\nd", "a b d e"),
    ("a\n...\nd", "b d"),
    ("8 cases", "7 cases"),
    ("a\n...\nb\n...\nc", "a b"),
    ("1,148 samples/s", "samples/s"),
]


def test_figures_that_vary_between_runs_agree_and_nothing_else() -> None:
    agreeing = [pair for pair in AGREEING + DIFFERING if agrees(pair[0].splitlines(), pair[1])]

    assert agreeing == AGREEING
    for reason, _, stand_in in MASKS:
        assert reason
        assert masked(stand_in) == stand_in.strip(), "a mask leaves nothing more to mask"


def test_a_fence_is_read_with_its_comment_and_outputs() -> None:
    text = "text\n\n<!-- exits with 1 -->\n```console\n$ a \\\n> b\nout\n\n$ c\n```\n"
    (fence,) = fences(text)

    assert (fence.line, fence.info, fence.exits_with, fence.not_run) == (4, "console", 1, None)
    assert [(one.line, one.text, one.printed) for one in fence.commands()] == [
        (5, "a \\\nb", ("out", "")),
        (9, "c", ()),
    ]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "reader").mkdir()
    return Reader(tmp_path / "reader", tmp_path / "site")


@pytest.mark.process
def test_files_and_changes_of_a_page_are_made(reader: Reader) -> None:
    """A step that differs from the page is reported."""
    reader.follow(
        "```python\n# a/b.py\nx = 1\ny = 2\n```\n\n"
        "```diff\n--- a/b.py\n+++ a/b.py\n x = 1\n-y = 2\n+y = 3\n```\n\n"
        "```console\n$ cat a/b.py\n# a/b.py\nx = 1\ny = 3\n$ cd a\n$ ls\nb.py\n```\n"
    )
    assert reader.differences == []
    reader.follow("```console\n$ echo no\nyes\n$ false\n$ true\n```\n")
    assert [text.partition("\n")[0] for text in reader.differences] == [
        "line 2: $ echo no",
        "line 4: $ false",
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    "disturbed",
    ["INVALID the machine was busy, which cost much", "record again when it is"],
)
def test_a_run_that_was_disturbed_is_made_again(reader: Reader, disturbed: str) -> None:
    once = f"echo x >> tries; test $(wc -l < tries) = 2 || {{ echo {disturbed}; false; }}"

    reader.follow(f"```console\n$ {once}\n$ wc -l < tries\n2\n```\n")
    assert reader.differences == []
    if "busy" in disturbed:
        with pytest.raises(BusyMachineError, match="the machine was busy"):
            reader.follow(f"```console\n$ echo {disturbed}\n```\n")
