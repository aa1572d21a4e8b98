"""Correct suites, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

SUITE = """\
schema = 1
round = "v4.1"
profile = "quick"

[workload]
name = "mine"
dataset = { use = "synthetic", samples = 8 }

[[engines]]
use = "null"
accelerators = ["cpu"]
options = { latency_s = 0.001 }

[[scenarios]]
name = "Offline"
target_qps = 100

[limits]
throughput = { max_drop = "3%" }
"""


def with_(*changes: tuple[str, str], more: str = "") -> str:
    """Return the suite with texts replaced; each must be there once."""
    text = SUITE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text + more


@dataclass(frozen=True)
class Defect:
    """A mistake in a suite and the messages about it, see tests/data/suite_defects.txt."""

    rule: str
    text: str
    messages: list[str]
    by_schema: bool


_HEAD, *_SECTIONS = (
    (Path(__file__).parents[1] / "data" / "suite_defects.txt").read_text("utf-8").split("## ")
)
BASES = {"suite": SUITE}
for _base in _HEAD.split("@@ ")[1:]:
    _name, _, _text = _base.partition("\n")
    BASES[_name] = f"{_text.rstrip()}\n"
CLAIMS = BASES["claims"]


def _read_defects() -> Iterator[Defect]:
    for section in _SECTIONS:
        (rule, base), *cases = (block.split("\n") for block in section.strip().split("\n\n"))
        for case in cases:
            yield Defect(
                rule=rule,
                text=_changed(BASES[base.removeprefix("@ ")], case),
                messages=[line.removeprefix("> ") for line in case if line.startswith("> ")],
                by_schema="!" in case,
            )


def _changed(text: str, case: list[str]) -> str:
    """Return a suite in which lines with - are replaced by the lines with + that follow them."""
    replaced = ""
    for sign, group in groupby(case, key=lambda line: line[0]):
        lines = "".join(f"{line[1:]}\n" for line in group)
        if sign == "-":
            assert f"\n{text}".count(f"\n{lines}") == 1, lines
            text, replaced = f"\n{text}".replace(f"\n{lines}", "\n\0", 1)[1:], lines
        elif sign == "+":
            text, replaced = text.replace("\0", lines) if replaced else text + lines, ""
    return text.replace("\0", "")


DEFECTS = tuple(_read_defects())
