"""Test that data set `igbh` maps MLPerf's files of IGBH and names invalid content."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.igbh import NODE_KINDS, RELATIONS, IgbhDataset, read_tensor
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError, UnavailableError
from tests.adapters.datasets.hostile import Touch
from tests.adapters.datasets.refusals import not_refused

torch = pytest.importorskip("torch", reason="writes the files of torch")

COUNTS = dict(zip(NODE_KINDS, (12, 7, 2, 3, 2, 2), strict=True))
FEATURES = 4


def rows_of(kind: str) -> Any:
    drawing = np.random.RandomState(len(kind))
    return drawing.normal(size=(COUNTS[kind], FEATURES)).astype("<f4")


def edges_of(relation: tuple[str, str, str]) -> Any:
    drawing = np.random.RandomState(len(relation[1]))
    ends = [drawing.randint(0, COUNTS[kind], 9) for kind in (relation[0], relation[2])]
    return np.stack(ends, axis=1).astype("<i8")


def written(folder: Path, *, headers: bool = False) -> Path:
    """Write a graph as IGBH-full has it, or with the headers of the smaller ones."""
    data_folder = folder / "full" / "processed"
    for kind in NODE_KINDS:
        (data_folder / kind).mkdir(parents=True)
        file = data_folder / kind / "node_feat.npy"
        if kind in ("paper", "author") and not headers:
            file.write_bytes(rows_of(kind).tobytes())
        else:
            np.save(file, rows_of(kind))
    for relation in RELATIONS:
        (data_folder / "__".join(relation)).mkdir()
        np.save(data_folder / "__".join(relation) / "edge_index.npy", edges_of(relation))
    labels = np.arange(12, dtype="<f4") * 10
    if headers:
        np.save(data_folder / "paper" / "node_label_2K.npy", labels)
    else:
        (data_folder / "paper" / "node_label_2K.npy").write_bytes(labels.tobytes())
    torch.save(torch.tensor([11, 3, 7, 5, 0])[1:4], data_folder / "val_idx.pt")
    return data_folder


@pytest.mark.parametrize("headers", [False, True])
def test_papers_are_those_of_val_idx_with_their_labels(tmp_path: Path, headers: bool) -> None:
    """A part of a tensor is saved with all of it; its offset counts."""
    data_folder = written(tmp_path, headers=headers)

    for path in (tmp_path, data_folder):
        data = IgbhDataset(path=str(path), features=FEATURES)
        assert [data.input(n)["paper"] for n in range(len(data))] == [3, 7, 5]
        assert [data.reference(n) for n in range(len(data))] == [30, 70, 50]
        for kind in NODE_KINDS:
            assert np.array_equal(data.features[kind], rows_of(kind))
            assert isinstance(data.features[kind], np.memmap)
        for relation in RELATIONS:
            assert np.array_equal(data.edges[relation], edges_of(relation))


def test_its_digest_tells_other_data_apart(tmp_path: Path) -> None:
    data_folder = written(tmp_path)

    def digest(**options: Any) -> str:
        return IgbhDataset(path=str(tmp_path), features=FEATURES, **options).digest

    digest_at_start = digest()
    assert digest() == digest_at_start != digest(count=2)
    (data_folder / "fos" / "node_feat.npy").write_bytes(
        (data_folder / "fos" / "node_feat.npy").read_bytes()[:-4] + b"\0\0\0\1"
    )
    assert digest() != digest_at_start


def saved(values: Any) -> Callable[[Path], object]:
    return lambda folder: torch.save(values, folder / "val_idx.pt")


def cut(name: str, length: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:length])


def hostile(folder: Path) -> None:
    with zipfile.ZipFile(folder / "val_idx.pt", "w") as archive:
        archive.writestr("val_idx/data.pkl", pickle.dumps(Touch(Path("executed"), shell=False), 2))


def test_damage_is_one_error_and_nothing_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = [
        (cut("paper/node_feat.npy", 190), "its 190 bytes cannot be split into rows of 4 numbers"),
        (cut("paper/node_feat.npy", 0), "its 0 bytes cannot be split into rows of 4 numbers"),
        (cut("fos/node_feat.npy", 150), "fos/node_feat.npy.*bytes after its header"),
        (cut("paper__topic__fos/edge_index.npy", 3), "is not in NumPy's format"),
        (
            cut("paper/node_label_2K.npy", 20),
            "it has a paper outside of the 5 papers that have labels",
        ),
        (saved(torch.tensor([1, 12])), "it has a paper outside of the 12 papers that"),
        (saved(torch.tensor([1, -1])), "it has a paper outside of the 12 papers that"),
        (saved(torch.tensor([1, 2, 1])), "it has a paper twice"),
        (saved(torch.tensor([], dtype=torch.int64)), "it has a paper outside"),
        (
            saved(torch.tensor([1.0])),
            "is not a tensor of whole numbers .it tries to call torch.FloatStorage",
        ),
        (saved(torch.zeros(2, 2, dtype=torch.int64)), "it is not a plain list of whole numbers"),
        (saved(torch.arange(8)[::2]), "it is not a plain list of whole numbers"),
        (saved([1, 2]), "is not a tensor of whole numbers"),
        (cut("val_idx.pt", 100), "is not a tensor of whole numbers"),
        (hostile, "it tries to call __builtin__.getattr; such a file is never executed"),
    ]
    monkeypatch.chdir(tmp_path)

    def read(change: Callable[[Path], None]) -> None:
        shutil.rmtree(tmp_path / "full", ignore_errors=True)
        change(written(tmp_path))
        IgbhDataset(path=str(tmp_path), features=FEATURES)

    assert not_refused(RunError, rows, read) == []
    assert not (tmp_path / "executed").exists()


def test_edges_and_labels_that_cannot_be_are_named(tmp_path: Path) -> None:
    data_folder = written(tmp_path)
    file = data_folder / "paper__topic__fos" / "edge_index.npy"
    for number in (3, -1):
        np.save(file, np.array([[0, number]]))
        with pytest.raises(RunError, match=rf"topic.*has an edge to fos {number}, but the valid"):
            IgbhDataset(path=str(tmp_path), features=FEATURES)
    np.save(file, np.array([[0.0, 1.0]]))
    with pytest.raises(RunError, match="has values of type <f8, not <i8 or <i4"):
        IgbhDataset(path=str(tmp_path), features=FEATURES)
    np.save(file, edges_of(("paper", "topic", "fos")))
    with pytest.raises(RunError, match=r"has labels from [0-9]+ to 70, but the"):
        IgbhDataset(path=str(tmp_path), features=FEATURES, classes=70)
    np.save(data_folder / "author" / "node_feat.npy", np.float32(1))
    with pytest.raises(RunError, match=rf"has shape \(\), but needs rows of {FEATURES} numbers"):
        IgbhDataset(path=str(tmp_path), features=FEATURES)
    shutil.rmtree(tmp_path / "full")
    written(tmp_path)
    np.save(data_folder / "paper" / "node_label_2K.npy", np.float32(1))
    with pytest.raises(RunError, match=r"has shape \(\), but needs rows of 1 numbers"):
        IgbhDataset(path=str(tmp_path), features=FEATURES, classes=70)


def test_a_tensor_that_points_beyond_its_numbers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "val_idx.pt"
    torch.save(torch.arange(4), file)
    assert read_tensor(file).tolist() == [0, 1, 2, 3]
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:24] if name.endswith("/data/0") else content)

    with pytest.raises(RunError, match="its shape needs more than its 24 bytes"):
        read_tensor(file)


def test_missing_files_and_wrong_options_are_named(tmp_path: Path) -> None:
    (written(tmp_path) / "val_idx.pt").unlink()

    with pytest.raises(UnavailableError, match=r"val_idx\.pt of IGBH not found.*split_seeds\.py"):
        IgbhDataset.look(path=str(tmp_path))
    with pytest.raises(MlperfError, match=r"paper/node_feat\.npy, .* \.\.\. of IGBH not found"):
        IgbhDataset.look(path=str(tmp_path / "nowhere"))
    with pytest.raises(SuiteError, match="features = 0 is not a number of features per"):
        IgbhDataset.look(path=str(tmp_path), features=0)
