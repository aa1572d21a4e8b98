"""Parse a Prometheus page: the text that servers and exporters serve at /metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_LABELS = r'(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*'
_VALUE = r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?"

_SAMPLE = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{{(?P<labels>{_LABELS})\}})?"
    rf"[ \t]+(?P<value>{_VALUE})(?:[ \t]+-?\d{{1,15}})?[ \t\r]*",
    re.ASCII,
)
_LABEL = re.compile(r'([a-zA-Z_]\w*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"', re.ASCII)
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSample:
    """Hold one line of a Prometheus page.

    Attributes:
        name: Name of the metric on the page.
        labels: Values by name.
        value: A finite number.
    """

    name: str
    labels: Mapping[str, str]
    value: float


def page_samples(page: bytes, names: Collection[str]) -> Iterator[PageSample]:
    """Yield the samples of these Prometheus metrics in page order; skip malformed lines."""
    begins = tuple(names)
    for line in page.decode("utf-8", "replace").split("\n"):
        if not line.startswith(begins):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None or match["name"] not in names:
            continue
        value = float(match["value"])
        if math.isfinite(value):
            pairs = _LABEL.findall(match["labels"] or "")
            labels = {name: _ESCAPED.sub(_plain, text) for name, text in pairs}
            yield PageSample(name=match["name"], labels=labels, value=value)


def _plain(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
