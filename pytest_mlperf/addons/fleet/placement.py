"""Choose the node of a cluster for a case: pure functions, without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

CPU_KIND = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetNode:
    """Describe a machine of a cluster.

    Attributes:
        key: Id in the cluster.
        name: Host name for messages; nodes that share a host have an id appended.
        kinds: Names of its GPUs, in any case: "H100", and "A100-80G" with "A100".
        cpus: Number of processors; 0 excludes cases of the CPU.
    """

    key: str
    name: str
    kinds: frozenset[str] = frozenset()
    gpus: int = 0
    cpus: float = 0.0

    @property
    def offers(self) -> str:
        """Accelerators in words: "4xH100 and cpu"."""
        kinds = "/".join(sorted(self.kinds)) or "GPU of unknown type"
        words = [kinds if self.gpus == 1 else f"{self.gpus}x{kinds}"] if self.gpus else []
        words += [CPU_KIND] if self.cpus >= 1 else []
        return " and ".join(words) or "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseNeed:
    """Describe the accelerators that a case needs on one node.

    Attributes:
        accelerators: Names in the suite, for messages: "8xH100".
        gpus: Number of each kind; empty for the CPU.
        anywhere: Whether the accelerator is pretended, so that any node will do if none has it.
    """

    accelerators: str
    gpus: Mapping[str, int]
    anywhere: bool = False

    @property
    def count(self) -> int:
        """Total number of GPUs."""
        return sum(self.gpus.values())


def need_of(accelerators: Iterable[tuple[int, str]], *, anywhere: bool = False) -> CaseNeed:
    """Return the requirements of a case on these counts and kinds of accelerators."""
    gpus: dict[str, int] = {}
    words = []
    for count, kind in accelerators:
        words.append(f"{count}x{kind}" if count > 1 else kind)
        if kind != CPU_KIND:
            gpus[kind] = max(count, gpus.get(kind, 0))
    return CaseNeed(accelerators=" and ".join(words), gpus=gpus, anywhere=anywhere)


def _has(node: FleetNode, need: CaseNeed) -> bool:
    if not need.gpus:
        return node.cpus >= 1
    kinds = {kind.lower() for kind in node.kinds}
    return node.gpus >= need.count and all(kind.lower() in kinds for kind in need.gpus)


def fitting(need: CaseNeed, nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """Return the nodes that have a case's accelerators, whether free or in use."""
    fit = [node for node in nodes if _has(node, need)]
    return fit if fit or not need.anywhere else list(nodes)


def place(
    need: CaseNeed,
    nodes: Sequence[FleetNode],
    running: Iterable[tuple[str, CaseNeed]],
    *,
    shared: bool,
) -> FleetNode | None:
    """Return the node on which a case can start now, or None.

    `running` has the keys of nodes. With `shared`, cases on other GPUs of a node may run.
    """
    on: dict[str, list[CaseNeed]] = {}
    for key, other in running:
        on.setdefault(key, []).append(other)

    def free(node: FleetNode) -> bool:
        others = on.get(node.key, [])
        if not others:
            return True
        if not shared or not need.gpus or any(not other.gpus for other in others):
            return False
        return sum(other.count for other in others) + need.count <= node.gpus

    fit = [node for node in fitting(need, nodes) if free(node)]
    # The smallest sufficient node: a larger one may be the only node for another case.
    return min(
        fit, key=lambda node: (len(on.get(node.key, [])), node.gpus, node.name), default=None
    )


def offered(nodes: Sequence[FleetNode]) -> str:
    """Return the accelerators of a cluster in words: "gpu-1: 4xH100 and cpu; gpu-2: cpu"."""
    able = [f"{node.name}: {node.offers}" for node in nodes if node.gpus or node.cpus >= 1]
    return "; ".join(able) or "nodes without GPUs and processors alone"


def lacking(need: CaseNeed, nodes: Sequence[FleetNode]) -> str:
    """Return why no node can run a case, in one sentence."""
    return f"no node of the cluster has {need.accelerators}; it has {offered(nodes)}"


def with_names(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """Return the nodes with unique names: nodes of one host get the beginning of their ids."""
    times = Counter(node.name for node in nodes)
    return [
        replace(node, name=f"{node.name} ({node.key[:6]})") if times[node.name] > 1 else node
        for node in nodes
    ]
