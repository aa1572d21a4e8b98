"""Neighbours in a graph of several kinds of nodes, sampled on the CPU while a query waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Relation = tuple[str, str, str]
"""Kind of the neighbour, name, and kind of the node that it is a neighbour of."""

CITATION_EDGE = ("paper", "cites", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """Nodes as far from the roots, each as often as it was reached.

    Attributes:
        nodes: Their numbers by kind.
        roots: The root that each was reached from, by kind.
        parents: By relation, of each neighbour on this level its node's position on the level
            before; neighbours of a kind are in the order of the relations.
    """

    nodes: Mapping[str, Ints]
    roots: Mapping[str, Ints]
    parents: Mapping[Relation, Ints] = field(default_factory=dict)


class Neighbours:
    """Edges by the node that they lead to; every edge is also there turned round.

    Of a node's neighbours by one relation at most so many are taken: all where it has no more, else
    as many at equal distances in their list, from a beginning that seed, root, hop and node decide:
    each is as likely, and none comes twice. So a root's neighbourhood is the same whatever is asked
    beside it, and the same in every run.
    """

    def __init__(self, edges: Mapping[Relation, NDArray[Any]], counts: Mapping[str, int]) -> None:
        """Sort the edges, which takes time and memory; it is not part of a query."""
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
        for hop, most in enumerate(fan_outs):
            before, parts, parents = levels[-1], dict[str, list[tuple[Ints, Ints]]](), {}
            for relation in self._rows:
                source, _, target = relation
                if target in before.nodes:
                    places, nodes = self._sampled(relation, before, most, (seed, hop))
                    parents[relation] = places
                    parts.setdefault(source, []).append((nodes, before.roots[target][places]))
            joined = [
                {kind: np.concatenate([part[n] for part in each]) for kind, each in parts.items()}
                for n in (0, 1)
            ]
            levels.append(Level(nodes=joined[0], roots=joined[1], parents=parents))
        return levels

    def _sampled(
        self, relation: Relation, level: Level, most: int, salt: tuple[int, int]
    ) -> tuple[Ints, Ints]:
        """Return for each neighbour that is taken its node's position on the level, and itself."""
        starts, sources = self._rows[relation]
        nodes, roots = level.nodes[relation[2]], level.roots[relation[2]]
        begin = starts[nodes]
        degree = starts[nodes + 1] - begin
        taken = np.minimum(degree, most)
        places = np.repeat(np.arange(len(nodes)), taken)
        turn = np.arange(len(places)) - np.repeat(np.cumsum(taken) - taken, taken)
        chance = _chance(*salt, len(relation[1]), roots[places], nodes[places])
        part = (turn + np.where(degree[places] > most, chance, 0.0)) / taken[places]
        chosen = np.minimum((part * degree[places]).astype(np.int64), degree[places] - 1)
        return places, sources[begin[places] + chosen].astype(np.int64)


def _sorted(sources: Any, targets: Any, count: int) -> tuple[Ints, NDArray[Any]]:
    """Return where the neighbours of each node begin, and the neighbours."""
    order = np.argsort(targets, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=count), out=starts[1:])
    return starts, np.ascontiguousarray(np.asarray(sources)[order])


def _chance(*parts: Any) -> NDArray[np.float64]:
    """Return numbers from 0 to 1 that the parts decide, by the mixing of SplitMix64."""
    mixed = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            mixed = mixed + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return np.asarray((mixed >> np.uint64(11)) / float(1 << 53))
