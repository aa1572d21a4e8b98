"""Read IGBH, the paper graph of MLPerf's R-GAT, with memory-mapped features and edges."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets.files import FileDataset, FileOptions, wrong
from pytest_mlperf.adapters.datasets.files.arrays import damaged, find_npy
from pytest_mlperf.adapters.lazy import NDArray, np

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
"""Source kind, relation and target kind; folders of edges are named KIND__NAME__KIND."""

LABELS = {2983: "node_label_2K.npy", 19: "node_label_19.npy"}

MAGIC = b"\x93NUMPY"

LOOK_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class IgbhOptions(FileOptions, dataset="igbh", noun="papers"):
    """Options of the data set igbh.

    Attributes:
        path: Folder `processed` of the graph, with one folder for each kind of node and of edge; or
            a folder that contains full/processed.
        features: Number of features per node.
        classes: Number of classes: 19 reads node_label_19.npy, others node_label_2K.npy.
    """

    path: str
    features: int = 1024
    classes: int = 2983

    def __post_init__(self) -> None:
        self.check(features="features per node", classes="classes")

    def find(self) -> Path:
        folder = Path(self.path)
        if not (folder / "paper").is_dir() and (folder / "full" / "processed").is_dir():
            folder = folder / "full" / "processed"
        needed = [f"{kind}/node_feat.npy" for kind in NODE_KINDS]
        needed += [f"{'__'.join(each)}/edge_index.npy" for each in RELATIONS]
        needed += [f"paper/{LABELS.get(self.classes, LABELS[2983])}", "val_idx.pt"]
        missing = [name for name in needed if not (folder / name).is_file()]
        names = ", ".join(missing[:3]) + " ..." * (len(missing) > 3)
        hint = " (tools/split_seeds.py there writes val_idx.pt)" * ("val_idx.pt" in missing)
        problem = f"{folder}: {names} of IGBH not found; {ADVICE}{hint}"
        advice = "or set the data set's path to the folder `processed` of the graph"
        self.require((not missing, f"{problem}, {advice}"))
        return folder


class IgbhDataset(FileDataset[int]):
    """Papers of the validation set with their labels, and the graph that they belong to.

    IGBH-full has 788,379 such papers, in the order of val_idx.pt. Features and labels of the two
    largest graphs are raw float32, those of smaller graphs are in NumPy's format. Both formats are
    supported, and file sizes are checked. An engine samples neighbours in `features` and `edges`
    inside the timed run, as MLPerf's rules require.
    Source: graph/R-GAT/dgl_utilities/feature_fetching.py of https://github.com/mlcommons/inference.

    Attributes:
        features: Features of the nodes by kind of node, shape (nodes, features).
        edges: Pairs of connected nodes by the entries of `RELATIONS`, shape (edges, 2).
    """

    options = IgbhOptions
    features: Mapping[str, NDArray[Any]]
    edges: Mapping[tuple[str, str, str], NDArray[Any]]

    def _read(self, options: IgbhOptions, files: Path) -> None:
        self.features = {
            kind: _mapped(files / kind / "node_feat.npy", options.features) for kind in NODE_KINDS
        }
        counts = {kind: len(rows) for kind, rows in self.features.items()}
        self.edges = {}
        for relation in RELATIONS:
            file = files / "__".join(relation) / "edge_index.npy"
            self.edges[relation] = edges = _mapped(file, 2, whole=True)
            for column, kind in ((0, relation[0]), (1, relation[2])):
                nodes = edges[_spread(len(edges)), column]
                if len(nodes) and not 0 <= nodes.min() <= nodes.max() < counts[kind]:
                    number = nodes.min() if nodes.min() < 0 else nodes.max()
                    raise wrong(
                        file,
                        f"has an edge to {kind} {number}, but the valid numbers are 0 to "
                        f"{counts[kind] - 1:,}",
                        ADVICE,
                    )
        file = files / "paper" / LABELS.get(options.classes, LABELS[2983])
        labels = _mapped(file, 1).reshape(-1)
        if len(labels) > counts["paper"]:
            defect = f"has {len(labels):,} labels, but the graph has {counts['paper']:,} papers"
            raise wrong(file, defect, ADVICE)
        papers = _papers(files / "val_idx.pt", len(labels))
        self._keep(papers.tolist(), options.count, files / "val_idx.pt")
        used_labels = labels[papers[: len(self)]]
        if not (np.isfinite(used_labels).all() and (used_labels == used_labels.round()).all()):
            raise wrong(file, "has a label that is not a whole number", ADVICE)
        if not 0 <= used_labels.min() <= used_labels.max() < options.classes:
            raise wrong(
                file,
                f"has labels from {used_labels.min():g} to {used_labels.max():g}, but the valid "
                f"labels of classes = {options.classes} are 0 to {options.classes - 1}",
                ADVICE,
            )
        self._labels = used_labels.astype(np.int64).tolist()
        self.digest = self._checked_digest()

    def input(self, index: int) -> dict[str, int]:
        return {"paper": self._sample(index)}

    def reference(self, index: int) -> int:
        return int(self._labels[self._checked(index)])

    def _checked_digest(self) -> str:
        total = hashlib.sha256(b"igbh" + repr((self._samples, self._labels)).encode())
        for name, rows in (*self.features.items(), *self.edges.items()):
            values = np.ascontiguousarray(rows[_spread(len(rows))])
            if not np.isfinite(values).all():
                raise wrong(f"{name}/node_feat.npy", "a feature is not finite", ADVICE)
            kind = "<i8" if values.dtype.kind == "i" else "<f4"
            total.update(f"{name} {rows.shape}".encode() + values.astype(kind).tobytes())
        return total.hexdigest()


def _spread(count: int) -> list[int]:
    return sorted({number * count // LOOK_ROWS for number in range(LOOK_ROWS)}) if count else []


def _mapped(file: Path, width: int, *, whole: bool = False) -> NDArray[Any]:
    with file.open("rb") as opened:
        begin = opened.read(len(MAGIC))
    size = file.stat().st_size
    if begin == MAGIC:
        array = find_npy(file)
        types = ("<i8", "<i4") if whole else ("<f4", "<f2")
        shape, dtype, offset = array.shape, array.dtype, array.offset
        is_flat = len(shape) == 1 and width == 1
        if array.fortran:
            raise wrong(file, "is stored column by column", "save it again in C order")
        if not (is_flat or (len(shape) == 2 and shape[1] == width)):
            fix = ADVICE if whole or width == 1 else f"correct the option features, or {ADVICE}"
            raise wrong(file, f"has shape {shape}, but needs rows of {width} numbers", fix)
        if dtype not in types:
            raise wrong(file, f"has values of type {dtype}, not {' or '.join(types)}", ADVICE)
    else:
        dtype, offset, shape = "<f4", 0, (size // (4 * width), width)
        if whole:
            raise damaged(file, "is not in NumPy's format (.npy)")
        if size % (4 * width) or not size:
            defect = f"its {size:,} bytes cannot be split into rows of {width} numbers (float32)"
            fix = ADVICE if width == 1 else f"correct the option features, or {ADVICE}"
            raise wrong(file, defect, fix)
    rows = shape[0]
    if not rows:
        return np.zeros((0, width), dtype)
    return np.memmap(file, dtype, "r", offset, (rows, width))


def _papers(file: Path, labelled: int) -> NDArray[np.int64]:
    papers = read_tensor(file)
    if not len(papers) or not 0 <= papers.min() <= papers.max() < labelled:
        raise wrong(
            file, f"it has a paper outside of the {labelled:,} papers that have labels", ADVICE
        )
    if len(np.unique(papers)) < len(papers):
        raise wrong(file, "it has a paper twice", ADVICE)
    return papers


MAX_PICKLE_BYTES = 4096
"""Maximum size of the pickle, in bytes; too small for deep nesting."""

TENSOR_NAMES = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "LongStorage"),
    ("collections", "OrderedDict"),
}
"""Names in the pickle of an int64 tensor; its backward hooks are an empty OrderedDict."""


def read_tensor(file: Path) -> NDArray[np.int64]:
    """Return the values in a file with a one-dimensional int64 tensor, else raise RunError."""
    from pytest_mlperf.adapters.datasets.files.pickles import parse

    try:
        with zipfile.ZipFile(file) as archive:
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            folder = pickled.removesuffix("data.pkl")
            if archive.getinfo(pickled).file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its data.pkl has more than {MAX_PICKLE_BYTES:,} bytes")
            content = io.BytesIO(archive.read(pickled))
            tensor = parse(content, TENSOR_NAMES, max_bytes=4 * MAX_PICKLE_BYTES)  # reads ahead
            (_, numbers, name, *_), offset, shape, strides, *_ = tensor.args
            member = archive.getinfo(f"{folder}data/{name}")
            if numbers.name != "LongStorage" or (len(shape), tuple(strides)) != (1, (1,)):
                raise ValueError("it is not a plain list of whole numbers")
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed")
            # torch.save writes the whole storage of a view: MLPerf's file has 1.3 GB for 6 MB.
            if not 0 <= 8 * offset <= 8 * (offset + shape[0]) <= member.file_size:
                raise ValueError(f"its shape needs more than its {member.file_size:,} bytes")
            with archive.open(member) as opened:
                opened.seek(8 * offset)
                return np.frombuffer(opened.read(8 * shape[0]), "<i8").copy()
    # For a truncated or hostile file, zipfile, pickle and numpy can raise anything.
    except Exception as error:
        raise damaged(file, f"it is not a tensor of whole numbers ({error})") from error
