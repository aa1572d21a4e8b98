"""Which file of a folder is a data set's, and how `look` and the data set name a missing one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import registry
from pytest_mlperf.adapters.datasets import cnn_dailymail, graded, mixtral
from pytest_mlperf.core.errors import UnavailableError
from tests.adapters.datasets import test_cnn_dailymail, test_graded, test_mixtral, test_openorca
from tests.adapters.datasets.tables import Columns, write_table

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
    ("openorca", [], f"has neither {ORCA} nor {ORCA}.gz, and no other table; set"),
    ("openorca", ["a.pkl", "b.parquet"], "more than one other table (a.pkl, b.parquet); set"),
]


def test_looking_and_loading_name_the_missing_file_alike(tmp_path: Path) -> None:
    """None: the path itself does not exist; else it is a folder with these files."""
    for number, (use, files, message) in enumerate(SENTENCES):
        dataset: Any = registry.resolve(registry.target("datasets", use))
        path = tmp_path / f"data {number}"
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


COLUMNS: dict[str, tuple[Columns, str]] = {
    "cnn_dailymail": (test_cnn_dailymail.COLUMNS, "output"),
    "mixtral": (test_mixtral.ROWS, "gt_output"),
    "openorca": (test_openorca.ROWS, "output"),
    "graded": (test_graded.LLAMA, "gt_output"),
}
"""Columns of a table, and the name of that of references."""

FILES = [
    ("cnn_dailymail", [*cnn_dailymail.OFFICIAL_FILES, "cnn_dailymail_calibration.json"], CNN),
    (
        "cnn_dailymail",
        [cnn_dailymail.OFFICIAL_FILES[1], "calibration.json"],
        cnn_dailymail.OFFICIAL_FILES[1],
    ),
    ("cnn_dailymail", ["mine.json", "notes.txt"], "mine.json"),
    ("mixtral", [*mixtral.OFFICIAL_TABLES, "2024.06.06_mixtral_15k_calibration_v4.pkl"], MIXTRAL),
    ("mixtral", [mixtral.OFFICIAL_TABLES[1], "other.pkl"], mixtral.OFFICIAL_TABLES[1]),
    ("mixtral", ["mine.pkl.gz", "notes.txt"], "mine.pkl.gz"),
    ("openorca", [ORCA, "calibration.pkl"], ORCA),
    ("openorca", [f"{ORCA}.gz", "calibration.pkl.gz"], f"{ORCA}.gz"),
    ("openorca", [ORCA, f"{ORCA}.gz"], ORCA),
    ("openorca", ["mine.pkl", "notes.txt"], "mine.pkl"),
    *(("graded", [name, "another.pkl"], name) for name in graded.OFFICIAL_TABLES),
]


def test_a_folder_stands_for_its_official_file_or_else_for_the_only_one(tmp_path: Path) -> None:
    chosen = []
    for folder, (use, files, _) in enumerate(FILES):
        columns, answer = COLUMNS[use]
        for number, name in enumerate(files):
            references = [f"{number}", *columns[answer][1:]]
            write_table(tmp_path / str(folder) / name, columns, **{answer: references})
        dataset = registry.resolve(registry.target("datasets", use))
        reference = dataset(path=str(tmp_path / str(folder))).reference(0)
        target = reference if isinstance(reference, str) else reference["target"]
        chosen.append(files[int(target)])

    assert chosen == [expected for _, _, expected in FILES]
