"""Published figures in git: MLPerf's own results of a round, for reference, never a gate."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.published import SCHEMA, PublishedFile
from pytest_mlperf.stores.documents import Document

FILE = Document(PublishedFile, schema=SCHEMA, what="file of published figures")

load, save = FILE.load, FILE.save


def path_for(root: Path, *, round_name: str) -> Path:
    """Return the place of a round's figures below the folder of baselines.

    Raises:
        BaselineError: The name would lead elsewhere.
    """
    return root / "published" / f"{path_part('round', round_name)}.json"
