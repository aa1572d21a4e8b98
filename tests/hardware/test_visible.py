"""Test that CUDA_VISIBLE_DEVICES is read as CUDA reads it, and that a GPU is named by its UUID."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.hardware.machine import AmbiguousOrder, visible
from pytest_mlperf.hardware.nvidia import GpuState

A, B, C = "GPU-8932f937-d72c", "GPU-8932aaaa-0001", "GPU-41000000-0002"


def whole(uuid: str, index: int, product: str = "NVIDIA H200") -> GpuState:
    return {
        "uuid": uuid,
        "index": index,
        "parent": uuid,
        "address": None,
        "bus": None,
        "paths": {},
        "unread": {},
        "identity": {"gpu": product},
        "surroundings": {},
    }


def instance(uuid: str, index: int, gpu: str, number: int) -> GpuState:
    names = {"gpu": "NVIDIA H200 MIG 1g.18gb"}
    address = f"MIG-{gpu}/{number}/0"
    return {**whole(gpu, index), "uuid": uuid, "address": address, "identity": {**names}}


THREE = [whole(A, 0), whole(B, 1), whole(C, 2)]

SLICED = [
    whole(A, 0),
    instance("MIG-b0", 1, B, 1),
    instance("MIG-b1", 1, B, 2),
    instance("MIG-c0", 2, C, 1),
]

MIXED = [whole(A, 0, "NVIDIA A100-PCIE-40GB"), whole(B, 1), whole(C, 2)]


FORMS = {
    (): ["", " ", "-1", "NoDevFiles", "none", "GPU-dead", "H200", "3,0", "9" * 20],
    (A,): ["0", "GPU-8932f"],
    (B,): ["+1", "01", "1gpu2"],
    (C,): [C, "GPU-4"],
    (C, A): ["2,0", f"{C},{A}", f"{C},0"],
    (A, B, C): ["0,1,2"],
    (B, A): [" 1 , 0 "],
}
"""GPUs that are visible, by the forms that name them: a number, a UUID, as much as tells it."""

ENDED = {
    (A,): ["0,3,1", "0,,1", "0,NoDevFiles,1", f"{A},GPU-dead,{C}", "0,5,0"],
    (B,): ["1,"],
    (A, C): ["0,2,-1,1"],
}
"""An entry that names no GPU ends the list."""

NOTHING = [
    *("GPU-8932", "GPU-", f"{A}-more", "gpu-41000000-0002", A.removeprefix("GPU-")),
    *("0,0", f"1,{B}", "GPU-41,2,0"),
]
"""What tells no GPU from the others, and what names one twice."""


def test_each_form_is_read_as_cuda_reads_it() -> None:
    expected: dict[str, tuple[str, ...]] = dict.fromkeys(NOTHING, ())
    for table in (FORMS, ENDED):
        expected |= {form: gpus for gpus, forms in table.items() for form in forms}
    for order in ({}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}):
        visible_by_form = {
            form: tuple(visible(THREE, {"CUDA_VISIBLE_DEVICES": form, **order}))
            for form in expected
        }
        assert visible_by_form == expected


def test_instances_are_named_by_their_uuid_or_their_older_address() -> None:
    """A divided GPU as a whole is its first instance."""
    expected = {
        "MIG-b1": ["MIG-b1"],
        "MIG-c0,MIG-b0": ["MIG-c0", "MIG-b0"],
        f"MIG-{B}/2/0": ["MIG-b1"],
        f"MIG-{B}/2/0,MIG-b1": [],
        f"MIG-{B}/3/0": [],
        "MIG-b": [],
        f"MIG-{A}": [],
        "1": ["MIG-b0"],
        "2,0": ["MIG-c0", A],
        B: ["MIG-b0"],
        "1,MIG-b0": [],
    }
    assert {form: visible(SLICED, {"CUDA_VISIBLE_DEVICES": form}) for form in expected} == expected
    assert visible(SLICED, {}) == [A, "MIG-b0", "MIG-b1", "MIG-c0"]

    for order in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        with pytest.raises(AmbiguousOrder) as caught:
            visible(MIXED, {"CUDA_VISIBLE_DEVICES": "1", **order})
        assert str(caught.value) == (
            "CUDA_VISIBLE_DEVICES names GPU 1 by its index in CUDA's order, fastest first, which "
            "is unknown for different products (NVIDIA A100-PCIE-40GB, NVIDIA H200): set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID as nvidia-smi -L prints them"
        )


def test_without_the_variable_all_are_visible() -> None:
    """The container's own variable has done its work before: it is not read."""
    assert visible(THREE, {}) == [A, B, C]
    assert visible(THREE, {"NVIDIA_VISIBLE_DEVICES": "1"}) == [A, B, C]
    assert visible([], {"CUDA_VISIBLE_DEVICES": "0"}) == []

    expected = {f"{C},GPU-8932a": [C, B], "-1": [], "7": [], "": []}
    assert {form: visible(MIXED, {"CUDA_VISIBLE_DEVICES": form}) for form in expected} == expected
    assert visible(MIXED, {}) == [A, B, C]
    in_order = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible(MIXED, in_order) == [B]


@given(st.text(alphabet="0123GPUMI-,/ 89fabx", max_size=40))
def test_any_value_gives_present_gpus_once_each(value: str) -> None:
    """And a longer list only adds behind, unless it names one twice."""
    visible_uuids = visible(SLICED, {"CUDA_VISIBLE_DEVICES": value})

    assert len(set(visible_uuids)) == len(visible_uuids)
    assert set(visible_uuids) <= {device["uuid"] for device in SLICED}
    longer = visible(SLICED, {"CUDA_VISIBLE_DEVICES": f"{value},MIG-c0"})
    assert longer in ([], visible_uuids, [*visible_uuids, "MIG-c0"])


@given(st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), min_size=1, unique=True))
def test_every_gpu_has_a_beginning_that_names_it_and_no_shorter_one_does(ids: list[str]) -> None:
    devices = [whole(f"GPU-{each}", index) for index, each in enumerate(ids)]
    for device in devices:
        others = [other["uuid"] for other in devices if other is not device]
        for end in range(len("GPU-"), len(device["uuid"]) + 1):
            beginning = device["uuid"][:end]
            alone = not any(other.startswith(beginning) for other in others)
            visible_uuids = visible(devices, {"CUDA_VISIBLE_DEVICES": beginning})
            assert visible_uuids == ([device["uuid"]] if alone else [])
