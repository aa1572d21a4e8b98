"""Draw a graph of papers whose neighbours tell what they are about, for a tiny R-GAT.

Each class has a centre. The features of a paper are far from it, those of its neighbours nearer,
and most neighbours are of the same class. So features alone tell little, and neighbours much.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pytest_mlperf.adapters.datasets.igbh import RELATIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES, FEATURES = 300, 8
"""More classes than a byte holds: MLPerf's reference logs one."""

NODES = {
    "paper": 20_000,
    "author": 6_000,
    "institute": 100,
    "fos": CLASSES,
    "journal": 60,
    "conference": 40,
}

EDGES = {"cites": 3, "written_by": 2, "affiliated_to": 1, "topic": 1, "published": 1, "venue": 1}
"""Of each node that an edge begins at."""

NOISE = {"paper": 1.0, "author": 0.6, "fos": 0.1}
"""Deviation of features from the centre; other nodes are no nearer to one class than to another."""

SAME = {"cites": 0.7, "written_by": 0.8, "topic": 0.6}
"""Share of edges that lead to a node of the same class."""

HEADLESS = ("paper", "author")
"""Kinds whose features have no header, as in the largest two graphs."""

TRAINED, ASKED = 0.6, 0.05
"""Shares of the papers; MLPerf asks 0.005."""


class Papers:
    """The graph, drawn by NumPy's first generator, which never changes."""

    def __init__(self, seed: int) -> None:
        """Draw it."""
        drawing = np.random.RandomState(seed)
        centres = drawing.normal(0.0, 1.0, (CLASSES, FEATURES))
        classes = {kind: drawing.randint(0, CLASSES, count) for kind, count in NODES.items()}
        classes["fos"] = np.arange(CLASSES)
        self.labels = classes["paper"]
        self.features = {
            kind: (
                centres[classes[kind]] * (kind in NOISE)
                + drawing.normal(0.0, NOISE.get(kind, 1.0), (count, FEATURES))
            ).astype("<f4")
            for kind, count in NODES.items()
        }
        self.edges = {relation: self._joined(drawing, relation, classes) for relation in RELATIONS}
        self.shuffled = drawing.permutation(NODES["paper"])

    def _joined(
        self,
        drawing: np.random.RandomState,
        relation: tuple[str, str, str],
        classes: dict[str, NDArray[Any]],
    ) -> NDArray[np.int32]:
        source, name, target = relation
        order = np.argsort(classes[target], kind="stable")
        starts = np.searchsorted(classes[target][order], np.arange(CLASSES + 1))
        begins = np.repeat(np.arange(NODES[source]), EDGES[name])
        ends = drawing.randint(0, NODES[target], len(begins))
        first, last = (starts[classes[source][begins] + n] for n in (0, 1))
        turns = (drawing.random_sample(len(begins)) * (last - first)).astype(int)
        kin = order[np.minimum(first + turns, NODES[target] - 1)]
        same = (drawing.random_sample(len(begins)) < SAME.get(name, 0.0)) & (last > first)
        return np.stack([begins, np.where(same, kin, ends)], axis=1).astype("<i4")

    def files(self) -> dict[str, bytes]:
        """Return the files of `processed`, in MLPerf's layout."""
        files = {}
        for kind, rows in self.features.items():
            files[f"{kind}/node_feat.npy"] = rows.tobytes() if kind in HEADLESS else _npy(rows)
        for relation, pairs in self.edges.items():
            files[f"{'__'.join(relation)}/edge_index.npy"] = _npy(pairs)
        files["paper/node_label_2K.npy"] = self.labels.astype("<f4").tobytes()
        trained, asked = (int(share * len(self.shuffled)) for share in (TRAINED, ASKED))
        shuffled = torch.from_numpy(self.shuffled)
        files["train_idx.pt"] = _saved(shuffled[:trained].clone())
        # As MLPerf's script: a part of a tensor is saved, with all of it.
        files["val_idx.pt"] = _saved(shuffled[trained : trained + asked])
        return files


def _npy(values: NDArray[Any]) -> bytes:
    packed = io.BytesIO()
    np.save(packed, values)
    return packed.getvalue()


def _saved(tensor: Any) -> bytes:
    packed = io.BytesIO()
    torch.save(tensor, packed)
    return packed.getvalue()
