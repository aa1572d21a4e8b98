"""Choose the node of a cluster on which a case runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

CPU_KIND = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetNode:
    """Describe a node of a cluster.

    Attributes:
        key: Ray's id of the node.
        name: Host name in messages; nodes on the same host have a part of the id appended.
        kinds: Types of its GPUs, case-insensitive, such as "H100"; an "A100-80G" counts as "A100"
            too.
        cpus: Number of processors; with 0 no cases for the CPU run on the node.
    """

    key: str
    name: str
    kinds: frozenset[str] = frozenset()
    gpus: int = 0
    cpus: float = 0.0

    @property
    def offers(self) -> str:
        """Accelerators of the node as text: "4xH100 and cpu"."""
        kinds = "/".join(sorted(self.kinds)) or "GPU of unknown type"
        words = [kinds if self.gpus == 1 else f"{self.gpus}x{kinds}"] if self.gpus else []
        words += [CPU_KIND] if self.cpus >= 1 else []
        return " and ".join(words) or "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseNeed:
    """Describe the accelerators that a case needs on one node.

    Attributes:
        accelerators: Their names in the suite, for messages: "8xH100".
        gpus: Number of GPUs by type; empty if the case runs on the CPU.
        anywhere: Whether the accelerator is only pretended: if no node has it, any node may run the
            case.
    """

    accelerators: str
    gpus: Mapping[str, int]
    anywhere: bool = False

    @property
    def count(self) -> int:
        """Total number of GPUs that the case needs."""
        return sum(self.gpus.values())


def need_of(accelerators: Iterable[tuple[int, str]], *, anywhere: bool = False) -> CaseNeed:
    """Convert (count, type) pairs to a need; `anywhere`: if no node has them, any node will do."""
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
    """Return the nodes that have the accelerators a case needs, whether these are free or not."""
    fit = [node for node in nodes if _has(node, need)]
    return fit if fit or not need.anywhere else list(nodes)


def place(
    need: CaseNeed,
    nodes: Sequence[FleetNode],
    running: Iterable[tuple[str, CaseNeed]],
    *,
    shared: bool,
) -> FleetNode | None:
    """Return the node on which a case can start now; None if no suitable node is free.

    `running` lists the running cases: the key of the node, and what the case needs. With `shared`,
    several cases may use different GPUs of a node at the same time.
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
    return "; ".join(able) or "no GPU and no free CPU on any node"


def lacking(need: CaseNeed, nodes: Sequence[FleetNode]) -> str:
    """Return a sentence that says which accelerators a case needs and which ones the nodes have."""
    return f"no node of the cluster has {need.accelerators}; the nodes have: {offered(nodes)}"


def with_names(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """Make names of nodes unique: append a part of the id to names of nodes on the same host."""
    times = Counter(node.name for node in nodes)
    return [
        replace(node, name=f"{node.name} ({node.key[:6]})") if times[node.name] > 1 else node
        for node in nodes
    ]
