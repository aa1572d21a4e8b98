"""`look` and the data set itself name a missing file with the same sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import UnavailableError

CNN = "cnn_eval.json"
MIXTRAL = "09292024_mixtral_15k_mintoken2_v1.pkl"
ORCA = "open_orca_gpt4_tokenized_llama.sampled_24576.pkl"

SENTENCES = [
    ("cnn_dailymail", None, f"this file does not exist; get {CNN} as the README.md in language/"),
    ("cnn_dailymail", [], f", and no other file; get {CNN} as"),
    ("cnn_dailymail", ["a.json", "b.json"], "more than one other file (a.json, b.json); get"),
    ("mixtral", None, f"this table does not exist; get {MIXTRAL} as language"),
    ("mixtral", [], f", and no other table; get {MIXTRAL} as"),
    ("mixtral", ["a.pkl", "b.pkl"], "more than one other table (a.pkl, b.pkl); get"),
    ("graded", None, "this table does not exist; get it as"),
    ("openorca", None, "this table does not exist; set the data set's path to the file"),
    ("openorca", [], f"has neither {ORCA} nor that name with .gz, and no other table; set"),
    ("openorca", ["a.pkl", "b.parquet"], "more than one other table (a.pkl, b.parquet); set"),
]


@pytest.mark.parametrize(("use", "files", "message"), SENTENCES)
def test_looking_and_loading_name_the_missing_file_alike(
    tmp_path: Path, use: str, files: list[str] | None, message: str
) -> None:
    """None: the path itself does not exist; else it is a folder with these files."""
    dataset: Any = registry.resolve(registry.target("datasets", use))
    path = tmp_path / "data"
    if files is not None:
        path.mkdir()
    for name in files or ():
        (path / name).touch()

    with pytest.raises(UnavailableError) as looked:
        dataset.look(path=str(path))
    with pytest.raises(UnavailableError) as loaded:
        dataset(path=str(path))
    assert str(looked.value) == str(loaded.value)
    assert str(path) in str(looked.value)
    assert message in str(looked.value)
