"""The command line that starts a server: placeholders filled in, its program found."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mlperf.core.errors import RunError, SuiteError

NAMES = ("model", "host", "port")

_PLACEHOLDER = re.compile(r"(?<![{$])\{([A-Za-z_]\w*)\}")
"""{port}, but not {"json": 1}, ${VARIABLE} or {{a template}}."""


def check_command(command: Sequence[str], model: str | None) -> None:
    """Refuse a command line that cannot start a server.

    Raises:
        SuiteError: It is empty, has an unknown placeholder or no {port}, or asks for a model that
            the suite does not have. Which engine wants it is the caller's to add.
    """
    if isinstance(command, str) or not command or not all(isinstance(w, str) for w in command):
        raise SuiteError(
            f"serve = {command!r} is no list of words; e.g. "
            'serve = ["vllm", "serve", "{model}", "--port", "{port}"]'
        )
    if not command[0].strip():
        raise SuiteError("the first word of serve is empty; it is the program")
    found = [name for word in command for name in _PLACEHOLDER.findall(word)]
    for name in found:
        if name not in NAMES:
            known = ", ".join(f"{{{each}}}" for each in NAMES)
            raise SuiteError(f"serve has {{{name}}}; what is replaced is {known}")
    if "port" not in found:
        raise SuiteError(
            "serve does not tell the server its port, which is another one in every run; add e.g. "
            '"--port", "{port}"'
        )
    if "model" in found and model is None:
        raise SuiteError("serve has {model}, but the suite names none; set workload.model")


def fill_in(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words of a command with {name} replaced by its value."""
    return [_PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in command]


def find_program(word: str) -> str:
    """Return the path of a program.

    A name alone is looked up beside this Python, where the tools of its environment are, then on
    PATH. Anything else is a path, `~` expanded, relative to the working folder. Links stay: what a
    link to a Python points to has another environment.

    Raises:
        RunError: It is not there, or is no program.
    """
    if "/" in word:
        path = Path(word).expanduser().absolute()
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
        advice = "correct the path in serve"
        if (path / "bin/python").exists():
            advice = f"did you mean {word}/bin/python?"
        raise RunError("engine", f"serve: {word} is no program here (looked at {path}); {advice}")
    folders = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    )
    found = shutil.which(word, path=folders)
    if found is None:
        raise RunError(
            "engine",
            f"serve: {word} is no program here (looked beside {sys.executable} and on PATH); "
            "install it, or give its whole path",
        )
    return str(Path(found).absolute())
