"""Remove absolute paths, such as those of home folders, from data before they are stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from pytest_mlperf.core.untrusted_text import every_text

OUTSIDE_MARK = "…"
KEPT_NAMES = 2
"""Names of an outside path that stay: a run's folder with its session, a module with its
package."""

PROGRAMS = "bin"

_PATH_NAME = r"[^\s/'\"`<>|:;,()\[\]{}=*?&#\\]+"

_BEFORE = rf"(?:(?<=\s-[A-Za-z])|(?<=file://)|(?<![\w.~{OUTSIDE_MARK}/\\-]))"
"""After a word, a point or another slash it is a unit, a relative path or an address."""

_END = r"(?![\w-]|\.\w)"

_HOME = re.compile(rf"{_BEFORE}/(?:(?:home|Users)/{_PATH_NAME}|root){_END}")

_PATH = re.compile(
    _BEFORE
    # Kernel paths are equal everywhere, and /v1/completions is a server's path.
    + rf"(?!/(?:proc|sys|dev|v\d+)/)(?:/{_PATH_NAME}){{2,}}"
)

T = TypeVar("T")


def placeless(value: T, roots: Sequence[str] = (), home: str = "") -> T:
    """Return a text, or nested data with texts, without absolute paths.

    Paths below a root become relative, those in a home begin with "~"; other paths keep their last
    two names. Paths of the kernel (/proc, /sys, /dev) are unchanged.

    Args:
        roots: Absolute paths of the root folder, one for each way to write it.
        home: The user's home, if it has an unusual name.
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
    # The name of an environment is the one before its bin folder.
    kept = KEPT_NAMES + (names[-KEPT_NAMES] == PROGRAMS)
    return "/".join((OUTSIDE_MARK, *names[-kept:]))
