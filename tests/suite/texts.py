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

CLAIMS = """\
schema = 1
round = "v4.1"
division = "open"
[workload]
name = "mine"
[[engines]]
use = "null"
name = "trt"
precision = "fp8"
accelerators = ["H200", "H100"]
techniques = ["pruning"]
[[engines]]
use = "null"
name = "trt"
precision = "fp16"
accelerators = ["H200", "A100"]
[[engines]]
use = "null"
name = "old"
precision = "fp16"
accelerators = ["cpu"]
[[scenarios]]
name = "Offline"
[[scenarios]]
name = "Server"
latency_limit = "1s"
target_qps = { H200 = 10, H100 = 8 }
"""

SEARCH = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
tokens = true
[[engines]]
use = "null"
accelerators = ["cpu", "H200"]
[[scenarios]]
name = "Server"
ttft_limit = "2s"
tpot_limit = "200ms"
find = { maximise = "target_qps", subject_to = "ttft_p99 < 1 s" }
"""

PLAIN = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"

[[engines]]
use = "null"
[[scenarios]]
name = "Offline"
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


def _read_defects() -> Iterator[Defect]:
    bases = {"suite": SUITE, "claims": CLAIMS, "search": SEARCH, "plain": PLAIN}
    file = Path(__file__).parents[1] / "data" / "suite_defects.txt"
    _, *sections = file.read_text("utf-8").split("## ")
    for section in sections:
        (rule, base), *cases = (block.split("\n") for block in section.strip().split("\n\n"))
        for case in cases:
            yield Defect(
                rule=rule,
                text=_changed(bases[base.removeprefix("@ ")], case),
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
