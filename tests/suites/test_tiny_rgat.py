"""The tiny R-GAT: trained, far above chance by its neighbours, found out when it is damaged."""

from __future__ import annotations

import pytest

from tests.suites.tiny_twin import TINY, Twin, load_tool, twin_marks

pytestmark = [*twin_marks("torch", "safetensors"), pytest.mark.torch]
SUITE = "rgat"


def test_a_byte_does_not_hold_its_classes(twin: Twin, answers: list[bytes]) -> None:
    """MLPerf's reference logs one byte, and silently loses each class above 255."""
    cut = [int.from_bytes(answer[:1], "little") for answer in answers]
    right = sum(one == label for one, label in zip(cut, twin.references, strict=True))

    assert max(twin.references) > 255
    assert 100 * right / len(cut) == pytest.approx(twin.training["uint8"], abs=1)
    assert twin.training["uint8"] < twin.gate("top1")
    assert twin.gate("top1") > 2 * twin.training["alone"] > 10 * twin.training["chance"]


def test_the_data_equal_the_tools(twin: Twin) -> None:
    graph = load_tool("tiny_papers").Papers(twin.training["seed"])
    folder = TINY / "rgat" / "data" / "full" / "processed"

    for name, content in graph.files().items():
        if name.endswith(".npy"):  # what torch saves has marks of its version
            assert (folder / name).read_bytes() == content
    papers = [twin.dataset.input(index)["paper"] for index in range(len(twin.dataset))]
    assert papers == graph.shuffled[12_000:13_000].tolist()
    assert twin.references == graph.labels[papers].tolist()
