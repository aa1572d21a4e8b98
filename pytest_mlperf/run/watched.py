"""A scorer that is watched: beside its scores, a digest of each output that it was given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from pytest_mlperf.core.extension import Scorer, Scores
from pytest_mlperf.core.outputs import digest
from pytest_mlperf.registry import resolve
from pytest_mlperf.stores import atomic

TARGET = f"{__name__}:Watched"


class Outputs(Sequence[bytes]):
    """Outputs whose digests are taken as they are read: images are not read twice."""

    def __init__(self, outputs: Sequence[bytes]) -> None:
        """Keep the outputs."""
        self._outputs = outputs
        self._digests: list[int | None] = [None] * len(outputs)

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self._outputs)

    @overload
    def __getitem__(self, position: int) -> bytes: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[bytes]: ...
    def __getitem__(self, position: int | slice) -> bytes | Sequence[bytes]:
        """Read one output, or return a part of them, whose digests are taken at the end."""
        if isinstance(position, slice):
            return self._outputs[position]
        output = self._outputs[position]
        if self._digests[position] is None:
            self._digests[position] = digest(output)
        return output

    def digests(self) -> list[int]:
        """Return the digest of every output; those that the scorer left out are read now."""
        return [
            digest(self._outputs[position]) if own is None else own
            for position, own in enumerate(self._digests)
        ]


class Watched:
    """Scores as another scorer does, and writes digests of the outputs into a file."""

    def __init__(self, *, model: str | None, scorer: Mapping[str, Any], file: str) -> None:
        """Build the scorer.

        Args:
            model: Handed to it.
            scorer: Its `target` and `options`.
            file: Gets a JSON list with a digest of each output.
        """
        self._scorer: Scorer = resolve(str(scorer["target"]))(model=model, **scorer["options"])
        self._file = Path(file)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs against references of the same samples."""
        watched = Outputs(outputs)
        scores = self._scorer.score(watched, references)
        atomic.write_text(self._file, json.dumps(watched.digests()))
        return scores
