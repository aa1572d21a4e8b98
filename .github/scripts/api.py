"""GitHub's API through the gh command, and what a step tells its job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

PAGE = 100
"""Entries of a page, the most that GitHub gives."""


class Refused(Exception):
    """GitHub said no, or gh could not ask."""


def call(path: str, *, method: str = "GET", body: dict[str, Any] | None = None) -> Any:
    """Return what GitHub answers; None where it answers nothing.

    Args:
        path: Below the API's root: "repos/OWNER/NAME/pulls/7".
        method: Of HTTP.
        body: Sent as JSON.

    Raises:
        Refused: It answered with an error.
    """
    command = ["gh", "api", "--method", method, path]
    given = None if body is None else json.dumps(body)
    if given is not None:
        command += ["--input", "-"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{method} {path}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.stdout.strip() else None


def pages(path: str, key: str = "") -> Iterator[Any]:
    """Yield every entry of a list, page by page.

    Args:
        path: As `call` takes it.
        key: Where each answer has its part of the list; "": it is the answer.

    Raises:
        Refused: It answered with an error.
    """
    joint = "&" if "?" in path else "?"
    number = 1
    while True:
        answer = call(f"{path}{joint}per_page={PAGE}&page={number}")
        found = answer[key] if key else answer
        yield from found
        if len(found) < PAGE:
            return
        number += 1


def event() -> dict[str, Any]:
    """Return what started this workflow, as GitHub wrote it for the job."""
    found: dict[str, Any] = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text("utf-8"))
    return found


def output(**values: str | int) -> None:
    """Set outputs of this step; each must be one line.

    Raises:
        ValueError: A value has more than one, which could set another output.
    """
    lines = [f"{name.replace('_', '-')}={value}" for name, value in values.items()]
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError("an output of several lines")
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def plain(text: str) -> str:
    """Return foreign text as one line that is no workflow command."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown.replace("::", ": :")


def fail(why: str) -> NoReturn:
    """End the step with an annotation."""
    print(f"::error::{plain(why).replace('%', '%25')}")
    sys.exit(1)
