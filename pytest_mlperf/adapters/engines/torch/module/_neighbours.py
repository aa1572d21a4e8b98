"""Sample neighbours in a graph of several kinds of nodes, on the CPU, for each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Relation = tuple[str, str, str]
"""Kind of the neighbour, name, and kind of the node."""

CITATION_EDGE = ("paper", "cites", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """Nodes at one distance from the roots, repeated for each path that reaches them.

    Attributes:
        nodes: Numbers of the nodes by kind.
        roots: Root of each node, by kind.
        parents: Position on the previous level of each neighbour's node, by relation; neighbours of
            a kind are in the order of the relations.
    """

    nodes: Mapping[str, Ints]
    roots: Mapping[str, Ints]
    parents: Mapping[Relation, Ints] = field(default_factory=dict)


class Neighbours:
    """The edges by target node, with the reverse of every edge.

    At most a given number of a node's neighbours by a relation is taken: all if it has no more,
    else at equal distances in their list, from a start that seed, root, hop and node determine.
    Each is equally likely, and none comes twice, so that a root's neighbourhood does not depend on
    the batch or the run.
    """

    def __init__(self, edges: Mapping[Relation, NDArray[Any]], counts: Mapping[str, int]) -> None:
        """Sort the edges, which takes time and memory, before any query."""
        self._rows: dict[Relation, tuple[Ints, NDArray[Any]]] = {}
        for (first, name, second), pairs in edges.items():
            ends = pairs[:, 0], pairs[:, 1]
            if (first, name, second) == CITATION_EDGE:
                apart = ends[0] != ends[1]
                both = [np.concatenate([ends[n][apart], ends[1 - n][apart]]) for n in (0, 1)]
                self._rows[CITATION_EDGE] = _sorted(both[0], both[1], counts[second])
                continue
            self._rows[first, name, second] = _sorted(*ends, counts[second])
            self._rows[second, f"rev_{name}", first] = _sorted(*ends[::-1], counts[first])

    def around(self, papers: Ints, fan_outs: Sequence[int], seed: int) -> list[Level]:
        """Return roots, their neighbours, their neighbours' neighbours, and so on."""
        levels = [Level(nodes={"paper": papers}, roots={"paper": papers})]
        for hop, count in enumerate(fan_outs):
            previous, parts, parents = levels[-1], dict[str, list[tuple[Ints, Ints]]](), {}
            for relation in self._rows:
                source, _, target = relation
                if target in previous.nodes:
                    positions, nodes = self._sampled(relation, previous, count, (seed, hop))
                    parents[relation] = positions
                    parts.setdefault(source, []).append((nodes, previous.roots[target][positions]))
            joined = [
                {kind: np.concatenate([part[n] for part in each]) for kind, each in parts.items()}
                for n in (0, 1)
            ]
            levels.append(Level(nodes=joined[0], roots=joined[1], parents=parents))
        return levels

    def _sampled(
        self, relation: Relation, level: Level, limit: int, salt: tuple[int, int]
    ) -> tuple[Ints, Ints]:
        """Return for each sampled neighbour its node's position on the level, and itself."""
        starts, sources = self._rows[relation]
        nodes, roots = level.nodes[relation[2]], level.roots[relation[2]]
        begin = starts[nodes]
        degree = starts[nodes + 1] - begin
        counts = np.minimum(degree, limit)
        positions = np.repeat(np.arange(len(nodes)), counts)
        turn = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        chance = _chance(*salt, len(relation[1]), roots[positions], nodes[positions])
        part = (turn + np.where(degree[positions] > limit, chance, 0.0)) / counts[positions]
        chosen = np.minimum((part * degree[positions]).astype(np.int64), degree[positions] - 1)
        return positions, sources[begin[positions] + chosen].astype(np.int64)


def _sorted(sources: Any, targets: Any, count: int) -> tuple[Ints, NDArray[Any]]:
    """Return the start of each node's neighbours, and the neighbours."""
    order = np.argsort(targets, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=count), out=starts[1:])
    return starts, np.ascontiguousarray(np.asarray(sources)[order])


def _chance(*parts: Any) -> NDArray[np.float64]:
    """Return numbers from 0 to 1 determined by the parts, by the mixing of SplitMix64."""
    mixed = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            mixed = mixed + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return np.asarray((mixed >> np.uint64(11)) / float(1 << 53))
