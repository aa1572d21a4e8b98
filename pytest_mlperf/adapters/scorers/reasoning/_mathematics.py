"""Check whether two answers to a question of MATH are equal, as PRM800K's grader does.

As a script, it reads one JSON list [target, answer] per line, and writes 1 or 0 for each. sympy may
run for ever on an answer; then the script is killed at a time limit.

Unlike in sympy's own parser, an answer is never evaluated as Python: only arithmetic with numbers,
symbols and sympy's functions in the syntax tree is evaluated.

Source of the rules: prm800k/grading of https://github.com/openai/prm800k, under the MIT licence.
"""

from __future__ import annotations

import ast
import builtins
import json
import operator
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, reduce
from itertools import starmap
from typing import Any

from pytest_mlperf.adapters.scorers import scorer_error

COMPARISON_CPU_SECONDS = 10.0
MAX_MEMORY_BYTES = 2**31

Replacements = Iterable[tuple[str, str]]

TEXT_COMMAND = re.compile(r"\\text\{(.+?)\}$")
UNIT = "\\text{ "

LINES_AND_COMMANDS = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac")),
    *(("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)
POINTS = (("\\%", ""), (" .", " 0."), ("{.", "{0."))

WHOLE = "-?[1-9][0-9]*|0"
RATIO = re.compile(f"({WHOLE})/({WHOLE})")


class OddError(Exception):
    """Report that an answer in LaTeX cannot be normalised."""


def _replaced(text: str, pairs: Replacements) -> str:
    return reduce(lambda result, pair: result.replace(*pair), pairs, text)


def _unwrapped(text: str) -> str:
    wrapped = TEXT_COMMAND.match(text)
    return wrapped[1] if wrapped else text


def normalised_latex(text: str) -> str:
    """Normalise an answer in LaTeX; return it unchanged if that is not possible."""
    text = _unwrapped(text.strip()).strip()
    try:
        return _written(text)
    except OddError:
        return text


def _written(text: str) -> str:
    text, _, unit = _replaced(text, LINES_AND_COMMANDS).partition(UNIT)
    if UNIT in unit:
        raise OddError
    text = _replaced(text, POINTS)
    if text.startswith("."):
        text = f"0{text}"
    name, equals, value = text.partition("=")
    if equals and len(name) <= 2 and "=" not in value:
        text = value
    if re.search(r"\\sqrt(\Z|\\sqrt)", text):
        raise OddError
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = _fractions(text)
    if text == "0.5":
        return "\\frac{1}{2}"
    ratio = RATIO.fullmatch(text)
    return f"\\frac{{{ratio[1]}}}{{{ratio[2]}}}" if ratio else text


def _fractions(text: str) -> str:
    r"""Add missing braces around the two arguments of each \frac, as in \frac12."""
    first, *parts = text.split("\\frac")
    braced = [first]
    for part in parts:
        if not part:
            raise OddError
        if not part.startswith("{"):
            if len(part) == 1:
                return text
            rest = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            part = f"{{{part[0]}}}{rest}"  # noqa: PLW2901
        braced.append(part)
    return "\\frac".join(braced)


SIGNS_AND_WORDS = (
    *(("\\%", "%"), ("\\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , ")),
    *(("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12")),
)
UNITS = (
    *("degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week"),
    *("month", "year", "foot", "feet", "inch", "yard"),
)
LATEX = (("\\tfrac", "\\frac"), ("\\dfrac", "\\frac"), ("\\frac", " \\frac"))
SYMBOLS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("×", "*"))


def plain(text: str) -> str:
    """Convert an answer to lower-case plain text without units, LaTeX commands and spaces."""
    text = _replaced(_unwrapped(text), SIGNS_AND_WORDS)
    for unit in UNITS:
        text = re.sub(rf"{unit}(es)?s? *(\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    if (value := _float(text)) is not None and _is_whole(value):
        text = str(round(value))
    if "\\" in text:
        text = _without_latex(text)
    text = re.sub("- *", "-", text)
    text = re.sub("([0-9]) +([0-9])", r"\1+\2", text)  # a mixed number
    text = _replaced(text, ((" ", ""), ("{", ""), ("}", ""))).lower()
    if _names_whole(text):
        text = str(int(float(text.replace(",", ""))))
    return text


def _without_latex(text: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text

    try:
        read: str = LatexNodes2Text().latex_to_text(_replaced(text, LATEX))
    except Exception:  # text that is no LaTeX raises many types
        return text
    return _replaced(read, SYMBOLS).strip()


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_whole(value: float) -> bool:
    try:
        return abs(value - round(value)) <= 1e-7
    except (OverflowError, ValueError):  # infinity and NaN
        return False


def _names_whole(text: str) -> bool:
    value = _float(_without_commas(text))
    return value is not None and _is_whole(value)


def _without_commas(text: str) -> str:
    shorter = re.sub(r"(\d),(\d\d\d)($|\D)", r"\1\2\3", text)
    return text if shorter == text else _without_commas(shorter)


BRACKETS = "()[]"


def elements(text: str) -> list[str]:
    """Split a tuple or an interval into its parts; any other answer is a single part."""
    text = _without_commas(text)
    inner = text[1:-1]
    bracketed = len(text) > 2 and text[0] in BRACKETS and text[-1] in BRACKETS
    if bracketed and not any(bracket in inner for bracket in BRACKETS):
        return [part.strip() for part in inner.split(",")]
    return [text] if text else []


FRACTION = re.compile(r"-?[0-9]+.?/0*[1-9][0-9]*.?$")


def is_same_answer(target: str, answer: str) -> bool:
    """Return whether an answer equals the target: as LaTeX, as plain text, or by value."""
    if normalised_latex(target) == normalised_latex(answer):
        return True
    target, answer = plain(target), plain(answer)
    if target == answer:
        return True
    if not answer:
        return False
    parts = elements(target), elements(answer)
    ends = (target[:1], target[-1:]) == (answer[:1], answer[-1:])
    if len(parts[0]) != len(parts[1]) or (len(parts[0]) > 1 and not ends):
        return False
    return all(starmap(_same_part, zip(*parts, strict=True)))


def _same_part(target: str, answer: str) -> bool:
    if FRACTION.match(target) and FRACTION.match(answer):
        return target == answer  # a fraction that is not reduced is wrong
    if _names_whole(target) != _names_whole(answer):
        return False
    return _same_value(f"({target})-({answer})")


UNTRIED = re.compile(r"\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+")
LETTERS = 2


def _same_value(difference: str) -> bool:
    letters = set(filter(str.isalpha, difference.replace("sqrt", "").replace("frac", "")))
    if len(letters) > LETTERS or UNTRIED.search(difference):
        return False
    try:
        from sympy import simplify

        return bool(simplify(_value(_tree(difference.replace("^", "**")))) == 0)
    except Exception:  # text that is no formula raises many types
        return False


OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}

MAKERS = frozenset({"Symbol", "Function", "Number", "Integer", "Float", "Rational"})
"""Functions that sympy's parser calls with a text's names and numbers; only they get text."""


@cache
def _names() -> dict[str, Any]:
    import sympy

    return {name: getattr(sympy, name) for name in sympy.__all__}


def _tree(text: str) -> ast.expr:
    """Parse a formula with sympy's parser; return a Python syntax tree, without evaluating it."""
    from sympy.parsing import sympy_parser as parser

    rules = (*parser.standard_transformations, parser.implicit_multiplication_application)
    code: str = parser.stringify_expr(text, {}, {**vars(builtins), **_names()}, rules)
    return ast.parse(code.strip(), mode="eval").body


def _value(node: ast.expr) -> Any:
    match node:
        case ast.BinOp(left, kind, right):
            return OPERATIONS[type(kind)](_value(left), _value(right))
        case ast.UnaryOp(kind, operand):
            return OPERATIONS[type(kind)](_value(operand))
        case ast.Call(ast.Name(name), [ast.Constant(str(text))], []) if name in MAKERS:
            return _names()[name](text)
        case ast.Call(function, arguments, []):
            return _value(function)(*map(_value, arguments))
        case ast.Name(name):
            return _names()[name]
        case ast.Constant(int(value) | float(value)):
            return value
    raise OddError


def same_answers(
    pairs: Sequence[tuple[str, str]], *, cpu_s: float = COMPARISON_CPU_SECONDS
) -> list[bool]:
    """Return, for each pair of target and answer, whether both are equal.

    A comparison that exceeds `cpu_s` of CPU time counts as unequal.
    """
    verdicts: list[bool] = []
    while len(verdicts) < len(pairs):
        rest = "\n".join(map(json.dumps, pairs[len(verdicts) :]))
        command = [sys.executable, "-m", __name__, str(cpu_s)]
        process = subprocess.run(command, input=rest, capture_output=True, text=True, check=False)
        verdicts += map("1".__eq__, process.stdout)
        if process.returncode in {-signal.SIGPROF, -signal.SIGSEGV}:
            verdicts.append(False)  # the answer that killed the process
        elif process.returncode:
            raise scorer_error(
                "the helper process that compares mathematical answers failed with exit code "
                f"{process.returncode}: {process.stderr.strip()[-500:]}",
            )
    return verdicts


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    import sympy  # noqa: F401 -- before the time limit starts

    for line in sys.stdin.read().splitlines():
        target, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        try:
            right = is_same_answer(target, answer)
        except (MemoryError, RecursionError):
            right = False
        print(int(right), end="", flush=True)


if __name__ == "__main__":
    main()
