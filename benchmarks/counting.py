"""A sink that costs next to nothing, so that what is measured is the engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence


class Counting:
    """Counts tokens, every one of which is reported as in a run; keeps nothing else."""

    wants_output = False
    times_tokens = True
    needs_first_tokens = True

    def __init__(self, expected: int) -> None:
        self.tokens = 0
        self.error: BaseException | None = None
        self._left = expected
        self._over = threading.Event()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Not counted."""

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Not counted."""

    def streamed(
        self,
        ids: Sequence[int],
        after_first: Sequence[int | None],
        hidden: Sequence[int | None] | None = None,
    ) -> None:
        """Nobody asks how."""

    def ended(
        self,
        ids: Sequence[int],
        reasons: Sequence[str],
        prompt_tokens: Sequence[int | None] | None = None,
    ) -> None:
        """Nobody asks why."""

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Not kept."""

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002 - not asked for
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        self.tokens += sum(n_tokens or ())
        self._left -= len(ids)
        if not self._left:
            self._over.set()

    def failed(self, error: BaseException) -> None:
        self.error = error
        self._over.set()

    def wait(self) -> None:
        assert self._over.wait(60)
        if self.error is not None:
            raise self.error
