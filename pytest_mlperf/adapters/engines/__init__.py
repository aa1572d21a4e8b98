"""Provide functions that several engines share: weight files, errors, option rules."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pytest_mlperf import Engine, RunError, SuiteError
from pytest_mlperf.adapters.conventions import lfs_pointer, not_installed
from pytest_mlperf.extension import Rule, text_of

MAX_INDEX_BYTES = 64 * 2**20


def weight_files(folder: Path, *, option: str = "weights") -> list[Path]:
    """Return a checkpoint's safetensors files; else raise RunError, advising `option` = "dummy"."""
    import safetensors

    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        files = [single]
    elif index.is_file():
        files = [folder / name for name in _named(index)]
    elif list(folder.glob("*.bin")):
        raise broken(
            folder,
            "has its weights only as .bin files, which can run code when loaded; convert them once "
            "with model.save_pretrained(folder) of transformers, which writes model.safetensors",
        )
    else:
        raise broken(
            folder,
            f'has no model.safetensors; copy it here, or set {option} = "dummy" to run with random '
            "weights",
        )
    for file in files:
        if not file.is_file():
            raise broken(file, f"is missing, but {index.name} names it; copy it here again")
        try:
            with safetensors.safe_open(file, "np"):
                pass
        except safetensors.SafetensorError as error:
            raise broken(
                file, f"is cut short or is not a safetensors file ({error}); copy it here again"
            ) from error
    return files


def _named(index: Path) -> list[str]:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise broken(index, f"has more than {MAX_INDEX_BYTES >> 20} MiB, so it is not an index")
    try:
        named = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise broken(index, f"is not an index of safetensors files: {reason}") from error
    for name in named:
        if not isinstance(name, str) or not name.isprintable() or not name.strip():
            raise broken(index, f"is not an index of safetensors files: it names {name!r}")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise broken(index, f"names {name!r}, which lies outside its folder; correct it")
    return sorted(named)


class StackedEngine(Engine):
    """Open an engine's resources in `_open`, and release them in reverse order."""

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._open(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._undo.__exit__(*exc_info)

    def _open(self, undo: ExitStack) -> None:
        """Acquire the resources; add their clean-up to `undo`."""
        raise NotImplementedError


def engine_error(message: str, log: str | None = None) -> RunError:
    """Return a RunError of layer "engine"."""
    return RunError("engine", message, log)


def broken(source: Path | str, problem: str) -> RunError:
    """Return the error for a defective file, folder or server: "SOURCE: PROBLEM"."""
    return engine_error(lfs_pointer(Path(source)) or f"{source}: {problem}")


def refused_sample(index: int, problem: object) -> RunError:
    """Return the error for a sample: "sample N of the data set PROBLEM"."""
    return engine_error(f"sample {index} of the data set {problem}")


def import_all(who: str, extra: str, *names: str) -> Any:
    """Import modules and return the first; raise EnvironmentFault for one that is missing."""
    try:
        modules = [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise not_installed(who, str(error.name), extra) from error
    return modules[0]


def require_module(who: str, name: str, extra: str, purpose: str = "") -> None:
    """Raise EnvironmentFault, which names the pip `extra`, unless a module can be found."""
    if importlib.util.find_spec(name) is None:
        raise not_installed(who, f"{name} for {purpose}" if purpose else name, extra)


def one_of(name: str, value: object, words: Sequence[str | None]) -> Rule:
    """Return a rule for `require_options`: the value must be one of `words`."""
    return name, value, value in words, f"one of {', '.join(filter(None, words))}"


def count_rule(name: str, value: object, things: str) -> Rule:
    """Return a rule for `require_options`: option `name` is None or a number of `things` >= 1."""
    return name, value, value is None or is_count(value), f"a number of {things}, at least 1"


def refuse_conflicts(engine: str, conflicts: Iterable[Sequence[Any]]) -> None:
    """Raise SuiteError for the first conflict (condition, message, options…) that is true."""
    for applies, fault, *options in conflicts:
        if applies:
            raise SuiteError(f"engine {engine}: {fault}", option=tuple(options))


def is_count(value: object) -> bool:
    """Check whether a value is a whole number, at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
