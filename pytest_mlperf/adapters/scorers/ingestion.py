"""Score the ingestion of documents and the MD5 of the store, as MLPerf's RAG script does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import Scores, UnavailableError
from pytest_mlperf.adapters.scorers import ScorerBase, require_outputs

DIGEST = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class IngestionOptions:
    """Options of scorer ingestion.

    Attributes:
        store: Path of the vector store's file. The engine writes it, and answers with its MD5.
    """

    store: str


class IngestionScorer(ScorerBase[IngestionOptions]):
    """Count ingested documents, and check the MD5 of the vector store.

    Metrics, in per cent:
    - "accuracy": the fraction of documents whose answer is the byte 1 or an MD5.
    - "store": 100 if the last MD5 in the answers is that of the store's file; 0 if it differs or is
      missing. In the latter case MLPerf's script fails the run at any accuracy.

    The script also checks vectors, a lookup and a manifest, which needs the store's own library and
    model; these checks are not made here.
    Source: e2e-rag/datasetup_accuracy_eval.py of https://github.com/mlcommons/inference.
    """

    metrics = ("accuracy", "store")

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score the ingestion of documents; references are ignored.

        An output is the byte 1 if the document was ingested, or the MD5 of the engine's store, 32
        hexadecimal digits. Returns "accuracy", the percentage of ingested documents, and "store",
        which is 100 if the last MD5 is that of the file `store`, else 0.
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
