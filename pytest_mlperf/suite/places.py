"""Find the files that a suite names; errors say how to provide missing ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.untrusted_text import closest, texts_in
from pytest_mlperf.stores import foreign
from pytest_mlperf.suite.load import line_of


def unset_variables(text: str) -> list[str]:
    """Return the names of `${VAR}` in a text whose variables are unset or empty."""
    names = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text))
    return [name for name in names if not os.environ.get(name)]


def unset_in(value: Any) -> list[str]:
    """Return the unset variables of all texts inside a value."""
    return list(dict.fromkeys(name for text in texts_in(value) for name in unset_variables(text)))


def expand(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `${VAR}` in the strings of options; raise SuiteError for unset variables."""

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


WEIGHTS_SUFFIXES = (".onnx", ".ort", ".safetensors", ".bin", ".pt", ".pth")
OTHER_FILES = ("*config.json", "*token*", "vocab*", "merges*", "*.model", "*.tiktoken")
FOLDERS = ("*", "*/*")
"""Places of a model's files in its folder; pipelines have them one folder deeper."""


def place_of(suite: Path, where: tuple[str | int, ...]) -> str:
    """Return "file:line" of a key of a suite."""
    return f"{suite}:{line_of(suite.read_text('utf-8-sig'), where)}"


def resolve_path(suite: Path, where: tuple[str | int, ...], text: str) -> str:
    """Resolve a path in a suite, relative to the suite's folder, with `${VAR}` expanded.

    Args:
        where: Key of the path; messages use its name, or its table's if the key is "path".

    Raises:
        UnavailableError: A variable is unset, or the file is missing, empty or a Git LFS pointer.
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
    files = [_first_weights(path)] if where[-1] == "model" else [path]
    more = (file for pattern in OTHER_FILES for file in sorted(path.glob(pattern)))
    files += [file for file in more if file.stat().st_size]  # an empty one is its reader's
    if defect := next(filter(None, map(_defect, files)), ""):
        raise UnavailableError(f"{place_of(suite, where)}: {defect}")
    return str(path.resolve())


def all_of(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of `calls`; raise one UnavailableError that names all failures."""
    results, missing = [], []
    for ask in calls:
        try:
            results.append(ask())
        except UnavailableError as error:
            missing.append(str(error))
    if missing:
        raise UnavailableError("; also ".join(missing))
    return results


def _advice(path: Path, text: str) -> str:
    parts = Path(os.path.normpath(path)).parts
    depth = next(n for n in range(len(parts), -1, -1) if Path(*parts[:n]).is_dir())
    beyond = len(parts) - depth
    written = list(Path(text).parts)
    try:
        siblings = [entry.name for entry in Path(*parts[:depth]).iterdir()]
    except OSError:
        siblings = []
    close = closest(parts[depth], siblings)
    if close and written[-beyond:] == list(parts[depth:]):
        candidate = Path(*parts[:depth], close, *parts[depth + 1 :])
        suggestion = [*written[:-beyond], close]
        if candidate.exists():
            suggestion += parts[depth + 1 :]
        return f"did you mean {Path(*suggestion).as_posix()}?"
    return "correct the path, or put the file there"


def _first_weights(model: Path) -> Path:
    """Return the model file to check: in a folder, the first weights that are not defective.

    Weights in an unused format may be left as Git LFS pointers on purpose.
    """
    if not model.is_dir():
        return model
    files = [
        f for each in FOLDERS for f in sorted(model.glob(each)) if f.suffix in WEIGHTS_SUFFIXES
    ]
    return next((file for file in files if not _defect(file)), files[0] if files else model)


def _defect(file: Path) -> str:
    if not file.is_file() or (size := file.stat().st_size) > foreign.MAX_POINTER_BYTES:
        return ""
    if size == 0:
        return f"{file} is empty (0 bytes); download it again"
    try:
        foreign.read_regular(file, foreign.MAX_POINTER_BYTES)
    except foreign.PointerError as pointer:
        return f"{file} is {pointer.strerror}"
    except (OSError, foreign.UnfitError):
        return ""  # the reader reports the error
    return ""


def expand_variables(
    suite: Path, key_path: tuple[str | int, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Expand `${VAR}` in options; raise UnavailableError with unset variables and their place."""
    try:
        return expand(options)
    except SuiteError as error:
        first = next(name for name, value in options.items() if unset_in(value))
        location = place_of(suite, (*key_path, first))
        raise UnavailableError(f"{location}: {key_path[-1]}: {error}") from None


def resolve_existing(suite: Path, value: Any) -> Any:
    """Resolve a PATH or "evaluate:PATH" that exists relative to the suite; else return `value`."""
    if not isinstance(value, str):
        return value
    prefix, path = "", value
    if value.startswith("evaluate:"):
        prefix, path = "evaluate:", value.removeprefix("evaluate:")
    target = suite.parent / path
    is_path = bool(prefix or "/" in path or Path(path).suffix)
    return f"{prefix}{target.resolve()}" if is_path and target.exists() else value
