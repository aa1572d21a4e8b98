"""Read IGBH, the graph of papers of MLPerf's R-GAT: features and edges are mapped, never copied."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.adapters.datasets.files import FileDataset, FileOptions, wrong
from pytest_mlperf.adapters.datasets.files.arrays import damaged, find_npy
from pytest_mlperf.adapters.datasets.files.tensors import read_tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ADVICE = "get the data as README.md of MLPerf's R-GAT reference says"

NODE_KINDS = ("paper", "author", "institute", "fos", "journal", "conference")
RELATIONS = (
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
    ("paper", "published", "journal"),
    ("paper", "venue", "conference"),
)
"""Kind, name and kind; the edges of each lie in a folder KIND__NAME__KIND."""

LABELS = {2983: "node_label_2K.npy", 19: "node_label_19.npy"}

MAGIC = b"\x93NUMPY"

LOOK_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class IgbhOptions(FileOptions):
    """Where the files are.

    Attributes:
        path: Folder `processed` of the graph, with a folder for each kind of node and of edge; or
            one in which it lies as full/processed.
        features: Numbers of a node.
        classes: Labels are below this number: of node_label_2K.npy, or where it is 19 of
            node_label_19.npy.
    """

    path: str
    features: int = 1024
    classes: int = 2983

    def __post_init__(self) -> None:
        self.check("igbh", features="numbers", classes="classes")

    def find(self) -> Path:
        folder = Path(self.path)
        if not (folder / "paper").is_dir() and (folder / "full" / "processed").is_dir():
            folder = folder / "full" / "processed"
        needed = [f"{kind}/node_feat.npy" for kind in NODE_KINDS]
        needed += [f"{'__'.join(each)}/edge_index.npy" for each in RELATIONS]
        needed += [f"paper/{LABELS.get(self.classes, LABELS[2983])}", "val_idx.pt"]
        missing = [name for name in needed if not (folder / name).is_file()]
        names = ", ".join(missing[:3]) + " ..." * (len(missing) > 3)
        made = "; val_idx.pt is written by its tools/split_seeds.py" * ("val_idx.pt" in missing)
        problem = f"{folder}: {names} of IGBH not found; {ADVICE}{made}"
        self.require((not missing, f"{problem}, or set the data set's path to where they are"))
        return folder


class IgbhDataset(FileDataset[int]):
    """Papers of the validation set by index, each with its label; the graph is beside them.

    Of IGBH-full 788,379 papers in the order of val_idx.pt. Features and labels of the two largest
    graphs are float32 without a header, of the others arrays in NumPy's format; both are read, and
    their sizes checked. An engine samples neighbours in the graph (`features`, `edges`) while it
    answers: MLPerf's rules have that timed.

    Source: graph/R-GAT/dgl_utilities/feature_fetching.py of https://github.com/mlcommons/inference.

    Attributes:
        features: Numbers of the nodes of each kind, (nodes, features).
        edges: Nodes that are joined, (edges, 2), by kind, name and kind of `RELATIONS`.
    """

    options = IgbhOptions
    unit = "paper"
    features: Mapping[str, NDArray[Any]]
    edges: Mapping[tuple[str, str, str], NDArray[Any]]

    def _read(self, asked: IgbhOptions, files: Path) -> None:
        import numpy as np

        self.features = {
            kind: _mapped(files / kind / "node_feat.npy", asked.features) for kind in NODE_KINDS
        }
        counts = {kind: len(rows) for kind, rows in self.features.items()}
        self.edges = {}
        for relation in RELATIONS:
            file = files / "__".join(relation) / "edge_index.npy"
            self.edges[relation] = edges = _mapped(file, 2, whole=True)
            for column, kind in ((0, relation[0]), (1, relation[2])):
                looked = edges[_spread(len(edges)), column]
                if len(looked) and not 0 <= looked.min() <= looked.max() < counts[kind]:
                    raise wrong(file, f"joins {kind} {looked.max()} of {counts[kind]:,}", ADVICE)
        file = files / "paper" / LABELS.get(asked.classes, LABELS[2983])
        labels = _mapped(file, 1).reshape(-1)
        if len(labels) > counts["paper"]:
            raise wrong(file, f"has {len(labels):,} labels of {counts['paper']:,} papers", ADVICE)
        papers = _papers(files / "val_idx.pt", len(labels))
        self._keep(papers.tolist(), asked.count, files, f"val_idx.pt has {len(papers)} papers")
        asked_for = labels[papers[: len(self)]]
        if not (np.isfinite(asked_for).all() and (asked_for == asked_for.round()).all()):
            raise wrong(file, "has a label that is no whole number", ADVICE)
        if not 0 <= asked_for.min() <= asked_for.max() < asked.classes:
            raise wrong(file, f"has label {asked_for.max():g} of {asked.classes} classes", ADVICE)
        self._labels = asked_for.astype(np.int64).tolist()
        self._digest = self._look_into()

    def input(self, index: int) -> dict[str, int]:
        return {"paper": self._sample(index)}

    def reference(self, index: int) -> int:
        return int(self._labels[self._checked(index)])

    @property
    def digest(self) -> str:
        """Hex SHA-256 over papers, labels, sizes, and 1,000 rows of each file, spread evenly."""
        return self._digest

    def _look_into(self) -> str:
        import numpy as np

        total = hashlib.sha256(b"igbh" + repr((self._samples, self._labels)).encode())
        for name, rows in (*self.features.items(), *self.edges.items()):
            looked = np.ascontiguousarray(rows[_spread(len(rows))])
            if not np.isfinite(looked).all():
                raise wrong(f"{name}", "a feature is not finite", ADVICE)
            kind = "<i8" if looked.dtype.kind == "i" else "<f4"
            total.update(f"{name} {rows.shape}".encode() + looked.astype(kind).tobytes())
        return total.hexdigest()


def _spread(count: int) -> list[int]:
    return sorted({number * count // LOOK_ROWS for number in range(LOOK_ROWS)}) if count else []


def _mapped(file: Path, width: int, *, whole: bool = False) -> NDArray[Any]:
    """Map rows of numbers: in NumPy's format, or floats without a header."""
    import numpy as np

    with file.open("rb") as opened:
        begin = opened.read(len(MAGIC))
    size = file.stat().st_size
    if begin == MAGIC:
        array = find_npy(file)
        types = ("<i8", "<i4") if whole else ("<f4", "<f2")
        shape, dtype, offset = array.shape, array.dtype, array.offset
        if shape not in ((*shape[:1], width), shape[:1] if width == 1 else ()) or array.fortran:
            raise damaged(file, f"rows of shape {shape} are there, not of {width} numbers each")
        if dtype not in types:
            raise wrong(file, f"has values of type {dtype}, not {' or '.join(types)}", ADVICE)
    else:
        dtype, offset, shape = "<f4", 0, (size // (4 * width), width)
        if whole or size % (4 * width) or not size:
            raise damaged(file, f"{size:,} bytes are no rows of {width} numbers each")
    rows = shape[0]
    if not rows:
        return np.zeros((0, width), dtype)
    return np.memmap(file, dtype, "r", offset, (rows, width))


def _papers(file: Path, labelled: int) -> NDArray[np.int64]:
    import numpy as np

    papers = read_tensor(file)
    if not len(papers) or not 0 <= papers.min() <= papers.max() < labelled:
        raise wrong(file, f"it has a paper that is none of the {labelled:,} with a label", ADVICE)
    if len(np.unique(papers)) < len(papers):
        raise wrong(file, "it has a paper twice", ADVICE)
    return papers
