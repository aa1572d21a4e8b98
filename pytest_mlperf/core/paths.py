"""Paths of one machine in what is stored: no file names somebody's home, or where a folder lies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from pytest_mlperf.core.untrusted_text import every_text

OUTSIDE_MARK = "…"
KEPT_NAMES = 2
"""Names of such a path that stay: a run's folder with its session, a module with its package."""

PROGRAMS = "bin"

_PATH_NAME = r"[^\s/'\"`<>|:;,()\[\]{}=*?&#\\]+"

_BEFORE = rf"(?:(?<=\s-[A-Za-z])|(?<=file://)|(?<![\w.~{OUTSIDE_MARK}/\\-]))"
"""Behind a word, a point or another slash it is a unit, a relative path or an address."""

_END = r"(?![\w-]|\.\w)"

_HOME = re.compile(rf"{_BEFORE}/(?:(?:home|Users)/{_PATH_NAME}|root){_END}")

_PATH = re.compile(
    _BEFORE
    # Paths of the kernel are the same everywhere, and /v1/completions is one of a server.
    + rf"(?!/(?:proc|sys|dev|v\d+)/)(?:/{_PATH_NAME}){{2,}}"
)

T = TypeVar("T")


def placeless(value: T, roots: Sequence[str] = (), home: str = "") -> T:
    """Return text, or data that holds some, without the absolute paths in it.

    What lies below a root is named from there on, what lies in a home behind "~"; of every other
    path the last two names stay. Paths of the kernel (/proc, /sys, /dev) are left as they are.

    Args:
        roots: Absolute paths of the folder from which names begin, one for each way to write it.
        home: The user's, where it is not of a usual name.
    """
    inside = sorted({root for root in roots if len(root) > 1}, key=len, reverse=True)
    below = [_at(root, rf"(?:(/)(?={_PATH_NAME})|{_END}/?)") for root in inside]
    homes = [_at(home, _END), _HOME] if len(home) > 1 else [_HOME]

    def change(text: str) -> str:
        if "/" not in text:
            return text
        for pattern in below:
            text = pattern.sub(lambda match: "" if match[1] else ".", text)
        for pattern in homes:
            text = pattern.sub("~", text)
        return _PATH.sub(_shortened, text)

    return every_text(value, change)


def _at(path: str, behind: str) -> re.Pattern[str]:
    return re.compile(f"{_BEFORE}{re.escape(path)}{behind}")


def _shortened(match: re.Match[str]) -> str:
    names = match[0].split("/")[1:]
    # Which environment it is stands before the folder of its programs.
    kept = KEPT_NAMES + (names[-KEPT_NAMES] == PROGRAMS)
    return "/".join((OUTSIDE_MARK, *names[-kept:]))
