"""Write the samples of language models as their publishers do."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

Columns = Mapping[str, Sequence[Any]]


def write_table(path: Path, columns: Columns, /, **changed: Any) -> Path:
    """Write columns, some of them replaced or left out (None), in the format of the file's name.

    A .json file is a list of records; a .parquet file and a pickled table are those of pandas.
    """
    kept = {
        name: list(column) for name, column in {**columns, **changed}.items() if column is not None
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        records = [dict(zip(kept, row, strict=True)) for row in zip(*kept.values(), strict=True)]
        path.write_text(json.dumps(records, indent=4, ensure_ascii=False), "utf-8")
        return path
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({name: pd.Series(column) for name, column in kept.items()})
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        path.write_bytes(pickle.dumps(frame))
    return path
