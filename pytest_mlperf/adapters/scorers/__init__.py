"""Provide scorers that give the same scores as MLPerf's reference scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pytest_mlperf import RunError
from pytest_mlperf.extension import require_options

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Define the options of scorers that have none."""


class ScorerBase(Generic[Options]):
    """Provide the base of scorers: `class X(ScorerBase[Y])` has the options of dataclass Y."""

    libraries: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type]

    def __init_subclass__(cls) -> None:
        """Set the class attribute `options` to the subclass's type argument, its options class."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if isinstance(kind := get_args(base)[0], type):
                cls.options = kind

    def __init__(
        self,
        *,
        model: str | None = None,  # noqa: ARG002 - every scorer is given it
        **options: Any,
    ) -> None:
        """Check and store the options, which the class attribute `options` defines.

        Args:
            model: Not used.
        """
        self._asked: Options = self.options(**options)


def scorer_error(message: str) -> RunError:
    """Return a RunError whose layer is "scorer"."""
    return RunError("scorer", message)


@contextmanager
def reading_reference(scorer: str, sample: int, form: str) -> Iterator[None]:
    """Raise one RunError for errors in reading a reference; `form` describes a valid one."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        defect = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        raise scorer_error(
            f"scorer {scorer}: sample {sample} has an invalid reference ({defect}); it must be "
            f"{form}; use a data set that fits the scorer"
        ) from error


def require_outputs(scorer: str, outputs: Sequence[bytes], references: Sequence[Any]) -> None:
    """Raise an error unless there are outputs, exactly one per reference."""
    if not len(outputs) or len(outputs) != len(references):
        raise scorer_error(
            f"scorer {scorer}: got {len(outputs)} outputs for {len(references)} references; it "
            "needs one output per reference, and at least one",
        )


def require_texts(scorer: str, references: Sequence[object], should_return: str) -> list[str]:
    """Return the references; raise an error if one is not a text.

    `should_return` tells in the message what the data set's `reference` should return.
    """
    texts = []
    for sample, reference in enumerate(references):
        if not isinstance(reference, str):
            raise scorer_error(
                f"scorer {scorer}: the reference of sample {sample} is a "
                f"{type(reference).__name__}, but must be a text; let the data set's "
                f"reference(index) return {should_return}",
            )
        texts.append(reference)
    return texts


def require_flag(scorer: str, option: str, value: object) -> None:
    """Raise an error if the value of an option is neither true nor false."""
    rule = (option, value, isinstance(value, bool), "true or false")
    require_options(f"scorer {scorer}", [rule])


def require_choice(scorer: str, option: str, value: object, valid: Collection[str]) -> None:
    """Raise an error if the value of an option is not in `valid`."""
    rule = (option, value, value in valid, f"one of {', '.join(valid)}")
    require_options(f"scorer {scorer}", [rule])
