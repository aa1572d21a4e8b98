"""Change the package in small ways and count which changes the tests notice.

Draws 100 mutants each of core/judge, bench and stores with a fixed seed, runs each against the
tests of its own folder, and compares the outcome with tests/data/mutants.json: every mutant that
was killed when the list was made must be killed again.

    python tools/mutants.py              compare with the list; exits with 1 if a mutant survives
    python tools/mutants.py --write      draw the mutants and write the list
    python tools/mutants.py --only stores --jobs 1
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = Path("tests/data/mutants.json")
NO_TESTS = 5
"""Exit code of a pytest that had no test to run."""

SEED = 37
NUMBER = 100
FOLDERS = ("core/judge", "bench", "stores")
SELECTED = "not quiet and not nightly"
COVERING_S = 3600.0

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Pow: ("**", "*"),
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed line of the package.

    Attributes:
        file: Below the package.
        line: Number of the line when the list was written.
        old: The line, without the white space around it.
        new: What replaces it.
        killed: Whether a test failed when the list was written.
    """

    file: str
    line: int
    old: str
    new: str
    killed: bool = False


class Finder(ast.NodeVisitor):
    """Collect the changes of a file that stay on one line: (line, first column, end, text)."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self.changes: list[tuple[int, int, int, str]] = []

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave out the annotation."""
        if node.value:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        """Leave out annotations of arguments."""
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave out the annotation of what is returned."""
        self.visit(node.args)
        for part in (*node.decorator_list, *node.body):
            self.visit(part)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out f-strings: Python 3.11 does not know the places inside them."""

    def visit_If(self, node: ast.If) -> None:
        """Negate a condition."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._replace(node.test, "not ({})")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate a condition."""
        self._replace(node.test, "not ({})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Exchange a comparison."""
        parts = (node.left, *node.comparators)
        for left, operator, right in zip(parts, node.ops, parts[1:], strict=False):
            self._between(left, right, *COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Exchange an arithmetic operator."""
        if type(node.op) in ARITHMETIC:
            self._between(node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange `and` and `or`."""
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, *words)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change a number or a truth value."""
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        """Return None."""
        if node.value and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node.value, "None")
            self.generic_visit(node)

    def _replace(self, node: ast.expr, text: str) -> None:
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            old = self._cut(node.lineno, node.col_offset, node.end_col_offset)
            change = (node.lineno, node.col_offset, node.end_col_offset, text.format(old))
            self.changes.append(change)

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        if left.end_lineno == right.lineno and left.end_col_offset is not None:
            gap = self._cut(right.lineno, left.end_col_offset, right.col_offset)
            if (at := gap.find(old)) >= 0:
                start = left.end_col_offset + at
                self.changes.append((right.lineno, start, start + len(old), new))

    def _cut(self, line: int, start: int, end: int) -> str:
        return self._lines[line - 1].encode()[start:end].decode()


def mutants_of(package: Path, file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file that still compiles."""
    text = file.read_text("utf-8")
    lines = text.splitlines()
    finder = Finder(lines)
    finder.visit(ast.parse(text))
    for number, start, end, replacement in sorted(set(finder.changes)):
        raw = lines[number - 1].encode()
        changed = (raw[:start] + replacement.encode() + raw[end:]).decode()
        try:
            compile("\n".join([*lines[: number - 1], changed, *lines[number:]]), str(file), "exec")
        except SyntaxError:
            continue
        yield Mutant(
            file=str(file.relative_to(package)),
            line=number,
            old=lines[number - 1].strip(),
            new=changed.strip(),
        )


def draw(root: Path, folder: str) -> list[Mutant]:
    """Draw the mutants of a folder, the same ones every time."""
    package = root / "pytest_mlperf"
    found = [
        mutant
        for file in sorted((package / folder).rglob("*.py"))
        for mutant in mutants_of(package, file)
    ]
    drawn = random.Random(f"{SEED} {folder}").sample(found, NUMBER)
    return sorted(drawn, key=lambda mutant: (mutant.file, mutant.line, mutant.new))


def changed_text(text: str, mutant: Mutant) -> str | None:
    """Return a file's text with a mutant in it; None if its line is gone."""
    lines = text.splitlines(keepends=True)
    found = [n for n, line in enumerate(lines) if line.strip() == mutant.old]
    if not found:
        return None
    number = min(found, key=lambda n: abs(n + 1 - mutant.line))
    lines[number] = lines[number].replace(mutant.old, mutant.new)
    return "".join(lines)


class Copy:
    """A copy of the repository in which one mutant lives at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy what git knows and what it does not ignore."""
        self.path = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)

    def run(self, arguments: Sequence[str], limit_s: float) -> int:
        """Run pytest in a fork that has the large libraries; return its exit code, -1 if killed."""
        pid = os.fork()
        if pid == 0:
            self._child(arguments)
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                _kill(pid)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        _kill(pid)
        os.waitpid(pid, 0)
        return -1

    def _child(self, arguments: Sequence[str]) -> None:
        code = 3
        try:
            os.setsid()
            os.chdir(self.path)
            sink = os.open(self.path / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.environ["PYTHONPATH"] = str(self.path)
            sys.path[:] = [str(self.path), *(p for p in sys.path if p not in ("", str(ROOT)))]
            sys.dont_write_bytecode = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            import pytest

            code = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]))
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def covering(copy: Copy, folder: str) -> Mapping[str, Mapping[int, Sequence[str]]]:
    """Return the tests that execute each line of each file."""
    measuring = (f"--cov=pytest_mlperf/{folder}", "--cov-context=test", "--cov-report=")
    code = copy.run([f"tests/{folder}", "-m", SELECTED, *measuring], COVERING_S)
    if code:
        log = (copy.path / "pytest.log").read_text("utf-8", "replace")
        sys.exit(f"tests/{folder} fail without a mutant:\n{log[-3000:]}")
    import coverage

    measured = coverage.CoverageData(str(copy.path / ".coverage"))
    measured.read()
    found: dict[str, Mapping[int, Sequence[str]]] = {}
    for file in measured.measured_files():
        name = str(Path(file).relative_to(copy.path / "pytest_mlperf"))
        found[name] = {
            line: sorted({context.partition("|")[0] for context in contexts if context})
            for line, contexts in measured.contexts_by_lineno(file).items()
        }
    return found


def examine(
    copy: Copy, folder: str, mutant: Mutant, lines: Mapping[int, Sequence[str]], limit_s: float
) -> str:
    """Return "killed", "survived", "no test ran", or "gone" where its line was edited."""
    file = copy.path / "pytest_mlperf" / mutant.file
    text = file.read_text("utf-8")
    changed = changed_text(text, mutant)
    if changed is None:
        return "gone"
    number = next(
        n
        for n, (a, b) in enumerate(zip(text.splitlines(), changed.splitlines(), strict=True), 1)
        if a != b
    )
    # A line that runs when its module is imported has no test of its own.
    tests = lines.get(number) or []
    file.write_text(changed, "utf-8")
    try:
        chosen = tests if 0 < len(tests) <= 400 else [f"tests/{folder}"]
        code = copy.run(["-x", "-m", SELECTED, *chosen], limit_s)
    finally:
        file.write_text(text, "utf-8")
    return {0: "survived", NO_TESTS: "no test ran"}.get(code, "killed")


def work(root: str, folder: str, mutants: Sequence[Mutant]) -> list[str]:
    """Examine a share of a folder's mutants in a copy of its own."""
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(root), Path(place))
        start = time.monotonic()
        lines = covering(copy, folder)
        limit_s = 60 + 5 * (time.monotonic() - start)  # a mutant may never end
        found = []
        for mutant in mutants:
            found.append(examine(copy, folder, mutant, lines.get(mutant.file, {}), limit_s))
            print(f"{found[-1]:9} {mutant.file}:{mutant.line} {mutant.new}", flush=True)
        return found


def main() -> int:
    """Examine the mutants; return 1 if one survives that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="draw the mutants and write the list")
    parser.add_argument("--only", choices=FOLDERS, action="append", help="default: all three")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout whose tests run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    stored: dict[str, Any] = {"seed": SEED}
    if (ROOT / LIST).exists():
        stored = json.loads((ROOT / LIST).read_text("utf-8"))
    for library in ("numpy", "pydantic", "pytest", "scipy.stats"):
        __import__(library)
    lost = []
    for folder in options.only or FOLDERS:
        if options.write:
            mutants = draw(options.root, folder)
        else:
            mutants = [Mutant(**entry) for entry in stored[folder]]
        shares = [mutants[n :: options.jobs] for n in range(options.jobs)]
        outcome: dict[Mutant, str] = {}
        with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
            futures = [pool.submit(work, str(options.root), folder, share) for share in shares]
            for share, future in zip(shares, futures, strict=True):
                outcome.update(zip(share, future.result(), strict=True))
        print(f"{folder}: {dict(Counter(outcome.values()))}", flush=True)
        if options.write:
            stored[folder] = [
                {**asdict(mutant), "killed": outcome[mutant] == "killed"} for mutant in mutants
            ]
            (ROOT / LIST).write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
        lost += [m for m in mutants if m.killed and outcome[m] not in {"killed", "gone"}]
    for mutant in lost:
        print(
            f"survives: pytest_mlperf/{mutant.file}:{mutant.line}\n  {mutant.old}\n  {mutant.new}"
        )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
