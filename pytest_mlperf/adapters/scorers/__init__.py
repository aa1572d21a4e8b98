"""Scorers equal to MLPerf's reference scripts, one module each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pytest_mlperf import RunError, SuiteError

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """There is nothing to choose."""


class ModelFreeScorer(Generic[Options]):
    """A scorer that reads outputs without the workload's model."""

    libraries: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type] = NoOptions

    def __init__(
        self,
        *,
        model: str | None = None,  # noqa: ARG002 - every scorer is given it
        **options: Any,
    ) -> None:
        """Take the options.

        Args:
            model: Not used: outputs are read without it.
            options: Those of the class attribute `options`.
        """
        self._asked: Options = self.options(**options)


def scorer_error(message: str) -> RunError:
    """Return the error of a scorer that cannot go on."""
    return RunError("scorer", message)


def require_outputs(scorer: str, outputs: Sequence[bytes], references: Sequence[Any]) -> None:
    """Refuse to score nothing, or not as many outputs as references."""
    if not len(outputs) or len(outputs) != len(references):
        raise scorer_error(
            f"scorer {scorer}: got {len(outputs)} outputs for {len(references)} references; it "
            "needs one output per reference, and at least one",
        )


def require_texts(scorer: str, references: Sequence[object], should_return: str) -> list[str]:
    """Return references, each read once, if they are texts.

    Messages name the `scorer`, and what the data set `should_return`, e.g. "the target text".
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


def require_choice(scorer: str, option: str, value: object, valid: Collection[str]) -> None:
    """Refuse an option that is not one of the valid values."""
    if value not in valid:
        raise SuiteError(
            f"scorer {scorer}: {option} = {value!r} is unknown; valid are {', '.join(valid)}",
            option=option,
        )
