"""Files that a suite names: where they lie, and what to set where they do not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.untrusted_text import closest, texts_in
from pytest_mlperf.suite.load import line_of


def unset_variables(text: str) -> list[str]:
    """Return the names of `${VAR}` in a text that the environment lacks, or has empty."""
    names = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text))
    return [name for name in names if not os.environ.get(name)]


def unset_in(value: Any) -> list[str]:
    """Return the same of every text in a value, however deep inside."""
    return list(dict.fromkeys(name for text in texts_in(value) for name in unset_variables(text)))


def expand(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `${VAR}` in the strings of options; a SuiteError names variables that are not set."""

    def value(entry: Any) -> Any:
        if isinstance(entry, str):
            return os.path.expandvars(entry)
        if isinstance(entry, Mapping):
            return {key: value(inner) for key, inner in entry.items()}
        return [value(inner) for inner in entry] if isinstance(entry, list) else entry

    if missing := unset_in(options):
        names = " and ".join(f"${{{name}}}" for name in missing)
        exports = " ".join(f"{name}=..." for name in missing)
        raise SuiteError(
            f"{names} {'is' if len(missing) == 1 else 'are'} not set; export {exports}"
        )
    return {key: value(given) for key, given in options.items()}


POINTER = b"version https://git-lfs.github.com/spec/v1"
"""How a file begins that Git LFS has left in the place of another."""

POINTER_BYTES = 1024
"""No pointer is longer."""

WEIGHTS_SUFFIXES = (".onnx", ".ort", ".safetensors", ".bin", ".pt", ".pth")
FOLDERS = ("*", "*/*")
"""Where the files of a model lie in its folder; those of a pipeline one folder deeper."""


def place_of(suite: Path, where: tuple[str | int, ...]) -> str:
    """Return file and line of a key of a suite."""
    return f"{suite}:{line_of(suite.read_text('utf-8-sig'), where)}"


def local(suite: Path, where: tuple[str | int, ...], text: str) -> str:
    """Resolve a path of a suite.

    Args:
        suite: The suite file; the path is relative to its folder.
        where: The key that names the path; messages call it so, "path" by its table's name.
        text: The path; `${VAR}` is expanded.

    Raises:
        UnavailableError: Variables are not set, there is no such file, or a file is empty or what
            Git LFS left in its place; says what to do.
    """
    title = where[-1] if where[-1] != "path" else where[-2]
    if missing := unset_variables(text):
        names = " and ".join(f"${{{name}}}" for name in missing)
        are, them = ("are", "them") if len(missing) > 1 else ("is", "it")
        examples = " ".join(f"{name}=/path/to/it" for name in missing)
        raise UnavailableError(
            f"{place_of(suite, where)}: {names} {are} not set; set {them} so that {text} "
            f"is the {title}, e.g. export {examples}"
        )
    path = suite.parent / Path(os.path.expandvars(text)).expanduser()
    if not path.exists():
        raise UnavailableError(
            f"{place_of(suite, where)}: the {title} {text} is not here (looked at {path}); "
            f"{_advice(path, text)}"
        )
    if defect := _defect(_first_weights(path) if where[-1] == "model" else path):
        raise UnavailableError(f"{place_of(suite, where)}: {defect}")
    return str(path.resolve())


def all_of(*asks: Callable[[], Any]) -> list[Any]:
    """Return what each of several gives; one UnavailableError names all that is missing."""
    results, missing = [], []
    for ask in asks:
        try:
            results.append(ask())
        except UnavailableError as error:
            missing.append(str(error))
    if missing:
        raise UnavailableError("; also ".join(missing))
    return results


def _advice(path: Path, text: str) -> str:
    """Return what may have been meant by a path that is not there, else what to do."""
    parts = Path(os.path.normpath(path)).parts
    there = next(n for n in range(len(parts), -1, -1) if Path(*parts[:n]).is_dir())
    beyond = len(parts) - there
    written = list(Path(text).parts)
    try:
        siblings = [entry.name for entry in Path(*parts[:there]).iterdir()]
    except OSError:
        siblings = []
    close = closest(parts[there], siblings)
    if close and written[-beyond:] == list(parts[there:]):
        meant = Path(*parts[:there], close, *parts[there + 1 :])
        suggestion = [*written[:-beyond], close]
        if meant.exists():
            suggestion += parts[there + 1 :]
        return f"did you mean {Path(*suggestion).as_posix()}?"
    return "correct the path in the suite, or put it there"


def _first_weights(model: Path) -> Path:
    """Return the file to look at: of a folder the first one of weights that can be used, if any.

    One that nobody loads may have been left as a pointer on purpose: another format, say.
    """
    if not model.is_dir():
        return model
    files = [
        f for each in FOLDERS for f in sorted(model.glob(each)) if f.suffix in WEIGHTS_SUFFIXES
    ]
    return next((file for file in files if not _defect(file)), files[0] if files else model)


def _defect(file: Path) -> str:
    """Return why a file that is there cannot be used; "" where nothing shows that."""
    if not file.is_file() or (size := file.stat().st_size) > POINTER_BYTES:
        return ""
    if size == 0:
        return f"{file} is empty (0 bytes): get it again"
    try:
        with file.open("rb") as opened:
            pointer = opened.read(len(POINTER)) == POINTER
    except OSError:
        return ""  # whoever reads it says why it cannot
    return f"{file} is a Git LFS pointer, not the file itself: git lfs pull" if pointer else ""


def available(
    suite: Path, where: tuple[str | int, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Expand `${VAR}` in options; an UnavailableError names all variables that are not set."""
    try:
        return expand(options)
    except SuiteError as error:
        first = next(name for name, value in options.items() if unset_in(value))
        place = place_of(suite, (*where, first))
        raise UnavailableError(f"{place}: {where[-1]}: {error}") from None


def near(suite: Path, value: Any) -> Any:
    """Resolve an option that is a path, also in "evaluate:PATH", if it lies near the suite."""
    if not isinstance(value, str):
        return value
    prefix, path = "", value
    if value.startswith("evaluate:"):
        prefix, path = "evaluate:", value.removeprefix("evaluate:")
    there = suite.parent / path
    is_path = bool(prefix or "/" in path or Path(path).suffix)
    return f"{prefix}{there.resolve()}" if is_path and there.exists() else value
