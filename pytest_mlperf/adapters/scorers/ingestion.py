"""Score the filling of a RAG's store as MLPerf's script does: what arrived, and the store's MD5."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import Scores, UnavailableError
from pytest_mlperf.adapters.scorers import ModelFreeScorer, require_outputs

DIGEST = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class IngestionOptions:
    """What the run has written.

    Attributes:
        store: The file of the store that the engine wrote, whose MD5 it answers with.
    """

    store: str


class IngestionScorer(ModelFreeScorer[IngestionOptions]):
    """Counts documents that were taken into a store, and compares the store's MD5.

    Metrics, in per cent:
    - "accuracy": documents whose answer is the byte 1, or an MD5.
    - "store": 100 where the last MD5 that was answered is that of the file; 0 where it is another,
      or none was answered. MLPerf's script fails such a run whatever the accuracy is.

    Its checks of vectors, of a lookup and of a manifest need the store's own library and model, and
    are not made here.

    Source: e2e-rag/datasetup_accuracy_eval.py of https://github.com/mlcommons/inference.
    """

    metrics = ("accuracy", "store")

    options: ClassVar[type] = IngestionOptions

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score the answers to documents; references are not used.

        An output is one byte, 1 if the document was ingested, or 32 letters of an MD5, whose
        document has the score "store". Returns the metrics of the class.
        """
        require_outputs("ingestion", outputs, references)
        digests = [place for place, output in enumerate(outputs) if DIGEST.fullmatch(output)]
        taken = [
            100.0 if output == b"\x01" or DIGEST.fullmatch(output) else 0.0 for output in outputs
        ]
        last = digests[-1] if digests else len(outputs) - 1
        same = 100.0 if digests and outputs[last].decode() == self._md5() else 0.0
        return Scores(
            per_sample={
                "accuracy": taken,
                "store": [same if place == last else None for place in range(len(outputs))],
            },
            aggregate={"accuracy": sum(taken) / len(taken), "store": same},
        )

    def _md5(self) -> str:
        store = Path(self._asked.store)
        try:
            with store.open("rb") as file:
                return hashlib.file_digest(file, "md5").hexdigest()
        except OSError as error:
            raise UnavailableError(
                f"scorer ingestion: {store} cannot be read ({error.strerror}); set store to "
                "the file that the engine writes its store to"
            ) from error
