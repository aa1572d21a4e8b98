"""Run a page of the documentation as its reader does: write files, run commands, compare output.

`python -m tests.docs.console docs/tutorial.md` does it in a new folder and prints what each command
prints, to be copied into the page.

A page is read from top to bottom, as its reader does:

- a fence whose first line is a path in a comment (`# suites/a.mlperf.toml`) is that file;
- a fence `diff` with `--- FILE` and `+++ FILE` changes a file that is there;
- a fence `console` holds commands after "$ " and below each what it prints. A line "..." stands
  for any output; a command with nothing below it may print anything. A command must succeed,
  unless `<!-- exits with 1 -->` stands above the fence: then its last command must end so;
- `<!-- before: COMMAND -->` above a fence is run before it, and makes what its
  reader has already;
- `<!-- needs: MODULE -->` above a fence leaves it out where that module is not installed, and
  `<!-- needs: MODULE, exits with 1 -->` says both;
- `<!-- not run: REASON -->` above a fence `console` leaves it out; reasons are counted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import LEAN

ROOT = Path(__file__).resolve().parents[2]

HOME = "/home/reader"
"""What pages call the folder that a reader works in."""

DISTURBED = "record again when it is"
"""What a recording says when one of its runs was disturbed: a reader does so, and so do we."""

TRIES = 4

OTHERS = re.compile(r"^INVALID the machine was busy", re.MULTILINE)
"""A test that could not be judged, by its first words, which is nothing that a page can say."""

MOST_BUSY = 2
"""So often a command is tried beside others: its own runs were each tried three times by then."""

LIMIT_S = 300
"""Of one command."""

_N = r"(?<![\w.])[+−-]?"
_GROUPED = r"\d{1,3}(?:[ \u00a0\u2009\u202f,]\d{3})+"
_UNITS = r"(?:%|[mµn]?s\b|min\b|h\b|x\b|/s\b|points\b)"

MASKS: Sequence[tuple[str, str, str]] = (
    ("runs are named by time and chance", r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN"),
    ("days", r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?(?: UTC)?", "DAY"),
    ("commits, also those without a letter", r"(?<=\bat )[0-9a-f]{12}\b\+?", "HASH"),
    (
        "commits and weights",
        r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b\+?",
        "HASH",
    ),
    ("versions of what is installed", r"\b\d+\.\d+(?:\.\d+)+\w*", "VERSION"),
    ("a rule decides how many runs it needs", r"\b\d+ (runs?|pairs?)\b", "SOME RUNS"),
    ("measured: with a unit", rf"{_N}(?:{_GROUPED}|\d+)(?:\.\d+)? ?(?={_UNITS})", "N "),
    ("measured: with a fraction, or in thousands", rf"{_N}(?:{_GROUPED}|\d+\.\d+)", "N"),
    ("measured: signed, or of three digits and more", r"(?<!\w)(?:[+−]\d+|\d{3,})\b", "N"),
    ("pytest draws rules as wide as the terminal", r"={2,}|-{4,}|_{4,}", ""),
    ("progress is drawn as wide as the terminal", r"\[ *\d+%\]", ""),
)
"""What differs from run to run and is not compared: why, what, and what stands in its place.

Words, their order, and whole numbers of one or two digits without a unit are compared.
"""

OURS: Mapping[str, str] = {
    "pip install --quiet --editable .": (
        f"{sys.executable} -m pip install --quiet --disable-pip-version-check --no-index --no-deps "
        '--no-build-isolation --target "$SITE" .'
    ),
}
"""What would change the environment that runs the tests, and what is run instead."""

SHORTER: Mapping[str, str] = {
    "pytest-mlperf init": (
        """pytest-mlperf init && sed -i 's/"2s"/"0.5s"/' suites/demo.mlperf.toml"""
    ),
}
"""What takes a reader minutes: the tests are content with runs of half a second."""


class BusyMachineError(Exception):
    """Others used the machine, as often as a command was tried."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and its output on the page; no output on the page accepts any."""

    line: int
    text: str
    printed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fence:
    """A fenced block of a page."""

    line: int
    info: str
    body: tuple[str, ...]
    comment: str

    @property
    def file(self) -> str | None:
        """The path in its first line, if it is a file of the reader's."""
        match = (
            re.fullmatch(r"# ([\w./-]+\.(?:py|toml|md|txt))", self.body[0]) if self.body else None
        )
        return match[1] if match and self.info in {"python", "toml", "text"} else None

    @property
    def not_run(self) -> str | None:
        """Why its commands are not run, or None."""
        match = re.fullmatch(r"<!-- not run: (.+) -->", self.comment)
        return match[1] if match else None

    @property
    def needs(self) -> str | None:
        """The module without which its commands cannot run, or None."""
        match = re.fullmatch(r"<!-- needs: (\w+)(, exits with \d+)? -->", self.comment)
        return match[1] if match else None

    @property
    def can_run(self) -> bool:
        """Whether its commands are run here."""
        return not self.not_run and (self.needs is None or find_spec(self.needs) is not None)

    @property
    def preparation(self) -> str | None:
        """What makes the things that its reader has already, or None."""
        match = re.fullmatch(r"<!-- before: (.+) -->", self.comment)
        return match[1] if match else None

    @property
    def exits_with(self) -> int:
        """The exit code of its last command."""
        match = re.fullmatch(r"<!-- (?:needs: \w+, )?exits with (\d+) -->", self.comment)
        return int(match[1]) if match else 0

    def commands(self) -> list[Command]:
        """Return its commands with their output on the page."""
        commands_found: list[tuple[int, list[str], list[str]]] = []
        for number, line in enumerate(self.body, self.line + 1):
            if line.startswith("$ "):
                commands_found.append((number, [line[2:]], []))
            elif line.startswith("> ") and commands_found and not commands_found[-1][2]:
                commands_found[-1][1].append(line[2:])
            elif commands_found:
                commands_found[-1][2].append(line)
        return [
            Command(line=number, text="\n".join(text), printed=tuple(printed))
            for number, text, printed in commands_found
        ]


def fences(text: str) -> Iterator[Fence]:
    """Yield the fenced blocks of a page, each with the comment right above it."""
    lines = text.splitlines()
    start: int | None = None
    mark = ""
    for index, line in enumerate(lines):
        if start is None:
            if opened := re.match(r"(`{3,})", line):
                start, mark = index, opened[1]
        elif line == mark:
            above = lines[start - 1] if start else ""
            yield Fence(
                line=start + 1,
                info=lines[start].removeprefix(mark).strip(),
                body=tuple(lines[start + 1 : index]),
                comment=above if above.startswith("<!--") else "",
            )
            start = None


def masked(text: str) -> str:
    """Return the comparable part of an output, in one line."""
    for _, pattern, stand_in in MASKS:
        text = re.sub(pattern, stand_in, text)
    return " ".join(text.split())


def agrees(printed: Sequence[str], output: str) -> bool:
    """Return whether an output agrees with the page."""
    parts: list[list[str]] = [[]]
    for line in printed:
        if line.strip() == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    pattern = r"(?:.*\s)??".join(
        f"{re.escape(masked(part))} " if part.strip() else "" for part in map("\n".join, parts)
    )
    ends_open = bool(printed) and printed[-1].strip() == "..."
    return bool(
        re.fullmatch(f"{pattern}{'.*' if ends_open else ''}", f"{masked(output)} ", re.DOTALL)
    )


@dataclass
class Reader:
    """A reader who follows a page, in a folder of their own.

    Attributes:
        folder: Where they begin.
        site: Where packages are installed for them.
        differences: Differences between the page and its run.
        patient: Waits as long as a reader, and prints every output as well.
    """

    folder: Path
    site: Path
    patient: bool = False
    differences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._here = self.folder

    def follow(self, text: str) -> None:
        """Do all that a page says."""
        for fence in fences(text):
            if fence.file:
                path = self._here / fence.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(fence.body) + "\n", "utf-8")
            elif fence.info == "diff" and fence.body[0].startswith("--- "):
                self._change(fence)
            elif fence.info == "console" and fence.can_run:
                self._run_all(fence)

    def _change(self, fence: Fence) -> None:
        path = self._here / fence.body[0].removeprefix("--- ").strip()
        text = path.read_text("utf-8")
        old = "\n".join(line[1:] for line in fence.body[2:] if line[:1] in "- ")
        new = "\n".join(line[1:] for line in fence.body[2:] if line[:1] in "+ ")
        if text.count(old) != 1:
            self.differences.append(f"line {fence.line}: {path.name} has not once {old!r}")
        path.write_text(text.replace(old, new), "utf-8")

    def _run_all(self, fence: Fence) -> None:
        commands = fence.commands()
        if fence.preparation:
            commands.insert(0, Command(line=fence.line - 1, text=fence.preparation, printed=()))
        for command in commands:
            expected = fence.exits_with if command is commands[-1] else 0
            code, output = self._try(command.text)
            if self.patient:
                print(f"$ {command.text}\n{output}[exit {code}]\n", flush=True)
            if code != expected:
                self._differs(command, f"exit code {code}, not {expected}:\n{output}")
            elif command.printed and not agrees(command.printed, output):
                page_output = "\n".join(command.printed)
                self._differs(
                    command,
                    f"the page shows\n{page_output}\n\nit printed\n{output}\n\n"
                    f"masked:\n{masked(page_output)}\n\n{masked(output)}",
                )

    def _differs(self, command: Command, how: str) -> None:
        self.differences.append(f"line {command.line}: $ {command.text}\n{how}")

    def _try(self, command: str) -> tuple[int, str]:
        busy = 0
        for _ in range(TRIES):
            code, output = self._run(command)
            if OTHERS.search(output):
                busy += 1
                if busy == MOST_BUSY:
                    raise BusyMachineError(f"{command}: the machine was busy")
            elif DISTURBED not in output:
                break
        return code, output

    def _run(self, command: str) -> tuple[int, str]:
        for text, other in {**OURS, **({} if self.patient else SHORTER)}.items():
            # The same command with an option is another one.
            command = other.join(re.split(rf"{re.escape(text)}(?! -)", command))
        left = self.site / "folder"
        self.site.mkdir(exist_ok=True)
        done = subprocess.run(
            ["bash", "-c", f"{command}\ncode=$?\npwd > {left}\nexit $code"],
            cwd=self._here,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        self._here = Path(left.read_text("utf-8").strip())
        return done.returncode, done.stdout.replace(str(self.folder), HOME)

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "CI" and not name.startswith(("PYTEST", "MLPERF", "COV_", "GIT_"))
        }
        who = {
            f"GIT_{role}_{what}": f"reader{'@example.org' * (what == 'EMAIL')}"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return {
            **kept,
            **who,
            "PATH": os.pathsep.join(
                (
                    f"{self.folder}/.local/bin",
                    str(Path(sys.executable).parent),
                    kept.get("PATH", os.defpath),
                )
            ),
            "HOME": str(self.folder),
            "SITE": str(self.site),
            "REPOSITORY": str(ROOT),
            "PYTHONPATH": str(self.site),
            "COLUMNS": "80",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTEST_MLPERF_LEASES": str(self.site / "leases"),
            # The control takes 0.6 s a run, and what it says of a busy machine is true.
            "PYTEST_ADDOPTS": f"{LEAN} -omlperf_control=off -p no:cacheprovider",
        }


def main(pages: Sequence[str]) -> int:
    """Follow pages and print what happens."""
    failed = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            reader = Reader(Path(folder) / "reader", Path(folder) / "site", patient=True)
            reader.folder.mkdir()
            try:
                reader.follow(Path(page).read_text("utf-8"))
            except BusyMachineError as busy:
                reader.differences.append(str(busy))
            for difference in reader.differences:
                print(f"--- {page}, {difference}\n")
            failed += bool(reader.differences)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
