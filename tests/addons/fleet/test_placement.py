"""Which node a case goes to: tables, without any cluster."""

from __future__ import annotations

from pytest_mlperf.addons.fleet.placement import (
    CaseNeed,
    FleetNode,
    fitting,
    lacking,
    need_of,
    offered,
    place,
    with_names,
)


def node(key: str, gpus: int = 0, *kinds: str, cpus: float = 2.0) -> FleetNode:
    return FleetNode(key=key, name=key, gpus=gpus, kinds=frozenset(kinds), cpus=cpus)


HEAD = node("head", cpus=0)
BIG, SMALL = node("big", 8, "H100"), node("small", 2, "H100")
A100, PLAIN = node("a100", 4, "A100", "A100-80G"), node("plain")
NODES = (HEAD, BIG, SMALL, A100, PLAIN)

ONE, TWO, EIGHT = need_of([(1, "H100")]), need_of([(2, "H100")]), need_of([(8, "H100")])
PROCESSORS = need_of([(1, "cpu")])


def test_a_node_fits_that_has_the_kind_and_as_many() -> None:
    for need, keys in (
        (ONE, "big small"),
        (EIGHT, "big"),
        (need_of([(16, "H100")]), ""),
        (need_of([(1, "h100")]), "big small"),
        (need_of([(4, "A100")]), "a100"),
        (need_of([(1, "A100-80G")]), "a100"),
        (need_of([(1, "H200")]), ""),
        (need_of([(1, "H200")], anywhere=True), "head big small a100 plain"),
        (need_of([(1, "H100")], anywhere=True), "big small"),
        (need_of([(1, "H100"), (8, "H100")]), "big"),
        (need_of([(1, "H100"), (1, "A100")]), ""),
        (need_of([(1, "H100"), (1, "cpu")]), "big small"),
        (PROCESSORS, "big small a100 plain"),
    ):
        assert " ".join(node.key for node in fitting(need, NODES)) == keys


def test_a_case_begins_on_an_idle_node() -> None:
    busy = [(key, ONE) for key in ("big", "small", "a100", "plain")]
    cases: list[tuple[CaseNeed, list[tuple[str, CaseNeed]], bool, str | None]] = [
        (ONE, [], False, "small"),
        (PROCESSORS, [], False, "plain"),
        (ONE, [("small", ONE)], False, "big"),
        (ONE, [("small", ONE), ("big", ONE)], False, None),
        (ONE, [("small", PROCESSORS)], False, "big"),
        (PROCESSORS, busy, False, None),
        # Each GPU of its own, where a user lets cases be neighbours.
        (ONE, [("small", ONE), ("big", ONE)], True, "small"),
        (ONE, [("small", TWO), ("big", ONE)], True, "big"),
        (EIGHT, [("big", ONE)], True, None),
        (TWO, [("small", ONE), *[("big", TWO)] * 4], True, None),
        (ONE, [("small", PROCESSORS), ("big", PROCESSORS)], True, None),
        (PROCESSORS, busy, True, None),
    ]
    for need, running, shared, key in cases:
        chosen = place(need, NODES, running, shared=shared)
        assert (chosen.key if chosen else None) == key, running


def test_a_missing_accelerator_is_named_with_those_that_exist() -> None:
    """Nodes of one host have names that differ."""
    need = need_of([(2, "B200")])

    assert lacking(need, NODES) == (
        "no node of the cluster has 2xB200; the nodes have: big: 8xH100 and cpu; small: 2xH100 and "
        "cpu; a100: 4xA100/A100-80G and cpu; plain: cpu"
    )
    assert offered([HEAD]) == "no GPU and no free CPU on any node"
    assert offered([node("dark", 2, cpus=0)]) == "dark: 2xGPU of unknown type"

    nodes = [FleetNode(key=key, name=name) for key, name in (("a1b2c3d4", "x"), ("b2", "x"))]

    assert [one.name for one in with_names([*nodes, PLAIN])] == ["x (a1b2c3)", "x (b2)", "plain"]
