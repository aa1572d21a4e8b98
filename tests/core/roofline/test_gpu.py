"""GPUs: the table, product names, the figures of one that the table lacks, and cost."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.roofline.gpu import (
    PEAKS,
    PRECISIONS,
    GpuPrice,
    GpuSpec,
    any_of,
    fewest_gpus,
    parse_gpu,
    peak,
    per_dollar,
)
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from tests.core.made import present

KNOWN = known_gpus()

# Dense TFLOP/s or TOP/s, memory in GB, GB/s; None: no such unit.
PRINTED = {
    "B200": (80, 1100, 2250, 4500, 4500, 9000, 180, 8000),
    "H200-SXM": (67, 494.7, 989.4, 1979, 1979, None, 141, 4800),
    "H100-SXM": (67, 494.7, 989.4, 1979, 1979, None, 80, 3350),
    "GH200-96": (67, 494.7, 989.4, 1979, 1979, None, 96, 4000),
    "GH200-144": (67, 494.7, 989.4, 1979, 1979, None, 144, 4900),
    "A100-SXM-80": (19.5, 156, 312, None, 624, None, 80, 2039),
    "L40S": (91.6, 183, 362, 733, 733, None, 48, 864),
    "GB200": (80, 1250, 2500, 5000, 5000, 10_000, 186, 8000),
    "B300": (75, 1125, 2250, 4500, 2250, 13_500, 288, 8000),
    "GB300": (83.3, 1250, 2500, 5000, 2500, 15_000, 288, 8000),
    "RTX_PRO_6000-Server": (126, 252, 504, 1008, 1008, 2015, 96, 1597),
    "GB10": (31, 62, 125, 250, 250, 500, 128, 273),
    "Thor-T5000": (8.064, None, 258.75, 517.5, 517.5, 1035, 128, 273),
    "H20-96": (44, 74, 148, 296, 296, None, 96, 4000),
    "L4": (30.3, 60.5, 121, 242.5, 242.5, None, 24, 300),
    "A10": (31.2, 62.5, 125, None, 250, None, 24, 600),
    "MI355X": (157.3, None, 2516.6, 5033.2, 5033.2, 10_066, 288, 8000),
}


def test_the_table_has_the_dense_figures_of_the_datasheets() -> None:
    for name, (fp32, tf32, half, fp8, int8, fp4, memory, bandwidth) in PRINTED.items():
        gpu = KNOWN[name]
        peaks = {"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half, "int8": int8, "fp4": fp4}
        for precision, tera in peaks.items():
            peak = gpu.peaks.get(precision)
            assert (peak and peak / 1e12) == (tera and pytest.approx(tera, rel=2e-3)), precision
        if fp8 is not None:
            assert gpu.peaks["fp8"] / 1e12 == pytest.approx(fp8, rel=1e-3)
        assert (gpu.memory, gpu.bandwidth) == (memory * 1e9, bandwidth * 1e9)


def test_each_halving_of_the_width_at_most_doubles_the_peak() -> None:
    """A sparse figure mistaken for a dense one would be four times as high.

    Blackwell Ultra alone has 4 bits at three times its rate in 8. Every GPU says where its figures
    are from, and clocks give a little headroom: 1.98 GHz over 1.83 on Hopper.
    """
    halvings = ["tf32 fp16", "tf32 bf16", "bf16 int8", "bf16 fp8", "int8 int4", "fp8 fp4"]
    for name, gpu in KNOWN.items():
        ultra = 3.0 if name in {"B300", "GB300"} else 2.05
        for wide, narrow in map(str.split, halvings):
            if wide in gpu.peaks and narrow in gpu.peaks:
                factor = gpu.peaks[narrow] / gpu.peaks[wide]
                assert 1 <= factor <= (ultra if narrow == "fp4" else 2.05), (name, wide, narrow)
        assert gpu.source, name
        assert name.startswith(gpu.accelerator)
        assert 1 <= gpu.headroom < 1.2, name
    assert KNOWN["H100-SXM"].headroom == pytest.approx(1.08, abs=0.005)


PRODUCTS: dict[str, list[tuple[str, float | None]]] = {
    "H100-SXM": [("NVIDIA H100 80GB HBM3", 80), ("NVIDIA H100-SXM-80GB", None)],
    "H100-PCIe": [("NVIDIA H100 PCIe", 80), ("NVIDIA H100-PCIe-80GB", None)],
    "H100-NVL": [("NVIDIA H100 NVL", 94), ("NVIDIA H100-NVL-94GB", None), ("H100", 94)],
    "H200-SXM": [("NVIDIA H200", 140), ("NVIDIA H200-SXM-141GB-CTS", None), ("H200", None)],
    "H200-NVL": [("NVIDIA H200 NVL", 140)],
    "GH200-96": [
        ("NVIDIA GH200 480GB", 96),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GH200 Grace Hopper Superchip 96GB", None),
    ],
    "GH200-144": [
        ("NVIDIA GH200 144G HBM3e", 144),
        ("NVIDIA GH200 Grace Hopper Superchip 144GB", None),
        ("GH200", None),
    ],
    "B200": [("NVIDIA B200", 179), ("NVIDIA B200-SXM-180GB", None)],
    "A100-SXM-80": [("NVIDIA A100-SXM4-80GB", 80)],
    "A100-PCIe-80": [("NVIDIA A100 80GB PCIe", 80)],
    "A100-40": [("NVIDIA A100-PCIE-40GB", 40), ("NVIDIA A100-SXM4-40GB", None)],
    "L40S": [("NVIDIA L40S", 45)],
    "L4": [("NVIDIA L4", 22), ("NVIDIA L4-PCIe-24GB", None)],
    "GB200": [("NVIDIA GB200", None)],
    "B300": [("NVIDIA B300-SXM-270GB", None), ("NVIDIA B300 SXM6 AC", 268)],
    "GB300": [("NVIDIA GB300", None)],
    "RTX_PRO_6000-Server": [("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95)],
    "RTX_PRO_6000-Workstation": [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95),
        ("RTX_PRO_6000", None),
    ],
    "GB10": [("NVIDIA GB10", None)],
    "Thor-T5000": [("NVIDIA Thor", 123), ("NVIDIA Jetson AGX Thor 128G", None)],
    "H20-96": [("NVIDIA H20", 95)],
    "H20-141": [("NVIDIA H20-3e", 140)],
    "A10": [("NVIDIA A10", 22)],
    "MI355X": [("AMD Instinct MI355X 288GB HBM3e", None)],
    "MI325X": [("AMD Instinct MI325X 256GB HBM3E", None)],
}
"""NVML's names and those of MLPerf's systems with their GiB, by the kind that they mean."""


def test_a_product_name_means_one_kind_or_none() -> None:
    """A class alone is its best kind; two kinds in one system are none."""
    products_by_kind = {
        kind: [
            gpu and gpu.name for gpu in (find_gpu(name, memory_gib=gib) for name, gib in products)
        ]
        for kind, products in PRODUCTS.items()
    }

    assert products_by_kind == {kind: [kind] * len(products) for kind, products in PRODUCTS.items()}

    others = ["NVIDIA GeForce RTX 4090", "RTX_4090", "NVIDIA VR200", "TPU v5e", "cpu", "H300"]
    others += ["NVIDIA A100-SXM-64GB", "GRID A100-40C", "NVIDIA A100-40C", "NVIDIA A100-4-20C"]
    others += ["NVIDIA L4-24Q", "NVIDIA L40S-48Q", "NVIDIA H100-80C", "NVIDIA A10 Laptop GPU"]
    others += ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA A100-PG509-200"]
    others += ["NVIDIA H100 64GB HBM2", "NVIDIA H100 PCIe 96GB", "NVIDIA L4 Mobile"]
    mixed = [
        "NVIDIA H200-SXM-141GB + AMD Instinct MI350X 288GB HBM3e",
        "AMD Instinct MI300X 192GB HBM3 (x32), AMD Instinct MI325X 256GB HBM3e (x16)",
    ]

    assert {name: find_gpu(name) for name in (*others, *mixed)} == dict.fromkeys((*others, *mixed))
    sized = [("NVIDIA A100-SXM-64GB", 64), ("GRID A100-40C", 40), ("NVIDIA H100 PCIe", 93)]
    assert [find_gpu(name, memory_gib=gib) for name, gib in sized] == [None] * len(sized)


def test_where_the_kind_is_open_no_kind_exceeds_what_is_found() -> None:
    """H100 is SXM, PCIe or NVL: the best of each figure, of SXM and NVL.

    What one of several kinds does not say is unknown.
    """
    gpu_spec = present(find_gpu("H100"))
    first = GpuSpec(name="a", accelerator="X1", peaks={"fp16": 1e12, "fp8": 2e12}, bandwidth=1e12)
    other = GpuSpec(name="b", accelerator="X1", peaks={"fp16": 3e12}, memory=1e9)
    both = any_of([first, other])

    assert gpu_spec.name == "H100-SXM or H100-NVL"
    for gpu in (gpu for gpu in KNOWN.values() if gpu.accelerator == "H100"):
        for precision, value in gpu.peaks.items():
            assert gpu_spec.peaks[precision] >= value
            assert gpu_spec.peaks[precision] * gpu_spec.headroom >= value * gpu.headroom * (
                1 - 1e-12
            )
        assert (gpu_spec.bandwidth or 0.0) >= (gpu.bandwidth or 0.0) > 0
        assert (gpu_spec.memory or 0.0) >= (gpu.memory or 0.0) > 0
    assert (dict(both.peaks), both.bandwidth, both.memory) == ({"fp16": 3e12}, None, None)


def test_a_suite_gives_the_figures_of_an_unknown_gpu() -> None:
    gpu = parse_gpu(
        "RTX_4090",
        {
            "fp16": 165.2e12,
            "fp8": "330.3 TFLOP/s",
            "int8": "330.3 TOPS",
            "bandwidth": "1,008 GB/s",
            "memory": "24 GB",
            "cache": "72 MB",
            "stated_clock": "2.52 GHz",
            "highest_clock": 2.52e9,
            "source": "datasheet",
        },
    )

    assert dict(gpu.peaks) == pytest.approx({"fp16": 165.2e12, "fp8": 330.3e12, "int8": 330.3e12})
    assert gpu.bandwidth == pytest.approx(1008e9)
    assert gpu.memory == pytest.approx(24e9)
    assert gpu.cache == 72e6
    assert (gpu.headroom, gpu.source) == (1.0, "datasheet")


UNIT = "must be a number in FLOP/s, or a text with its unit: "


def test_figures_that_cannot_be_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"fp99": 1e12}, "unknown 'fp99'; known: fp64, fp32, tf32, bf16"),
        ({}, "set at least one dense peak, e.g. fp16 = 989e12, fp8 = 1979e12"),
        ({"bandwidth": 1e12}, "set at least one dense peak"),
        ({"fp16": 989}, f'fp16 {UNIT}1979e12 or "1979 TFLOP/s"; 989 is too small for'),
        ({"fp16": "989 TB/s"}, f"fp16 {UNIT}1979e12 or \"1979 TFLOP/s\", not '989 TB/s'"),
        ({"fp16": 1e14, "bandwidth": 4800}, 'bandwidth must be a number in B/s, or a text with its '
         'unit: 4800e9 or "4.8 TB/s"; 4800 is too small for a value in B/s'),
        ({"fp16": 1e14, "memory": 141}, "memory must be a number in B, or a text with its unit: "
         '141e9 or "141 GB"; 141 is too small for a value in B'),
        *(({"fp16": odd}, f"fp16 {UNIT}") for odd in (True, math.nan, math.inf, "1.2.3 T")),
        ({"fp16": 1e14, "source": 3}, "source must be text, not 3"),
        ({"fp16": 989e12, "fp8": 3958e12}, "fp8 or int8 is 4 times fp16, so it is probably a peak"),
        ({"fp16": 1e14, "stated_clock": 1.8e9}, "set both stated_clock, for which the peaks are "),
    ]  # fmt: skip
    for figures, message in cases:
        with pytest.raises(SuiteError) as error:
            parse_gpu("X", figures)
        assert str(error.value).startswith(message)


def test_weights_in_four_bits_are_widened_where_no_unit_takes_them() -> None:
    """The fastest unit that the GPU has counts, so that the limit is never too low.

    Sparse weights keep half and 2 bits for each kept one: 0.625 bytes at 8 bits, 1.125 at 16.
    """
    hopper, blackwell = KNOWN["H200-SXM"], KNOWN["B200"]
    weights = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625}
    weights["int4-g128"] = 0.51953125

    assert {name: PRECISIONS[name].weight for name in weights} == weights
    assert [PRECISIONS[name].sparse for name in ("fp8", "int8", "fp16")] == [0.625, 0.625, 1.125]
    assert peak(hopper, "int4") == peak(hopper, "nvfp4") == hopper.peaks["fp8"]
    assert peak(blackwell, "nvfp4") == blackwell.peaks["fp4"]
    assert peak(hopper, "fp6") is None


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(PEAKS), st.floats(1e10, 1e17), min_size=1))
def test_without_a_precision_the_fastest_peak_counts(peaks: dict[str, float]) -> None:
    gpu = GpuSpec(name="X", accelerator="X", peaks=peaks)

    assert max(peak(gpu, name) or 0.0 for name in PRECISIONS) <= (peak(gpu, None) or 0.0)


DAY = date(2026, 11, 1)

prices = st.floats(0.01, 1000)
rates = st.floats(0, 1e9)
counts = st.integers(1, 64)


def test_a_page_s_arithmetic_holds_for_one_gpu() -> None:
    """Tokens a second x 3600 / dollars an hour."""
    for rate, usd, printed in (
        (155, 3.29, 169_600),
        (110, 2.99, 132_400),
        (110, 3.93, 100_800),
        (35, 1.79, 70_400),
    ):
        per_usd = per_dollar(rate, GpuPrice(usd_per_gpu_hour=usd, as_of=DAY), gpus=1)
        assert per_usd.value == pytest.approx(printed, abs=60)
        assert (per_usd.gpus, per_usd.price.as_of) == (1, DAY)


@given(rates, prices, counts, counts)
def test_purchased_gpus_are_all_paid_for(rate: float, usd: float, gpus: int, holding: int) -> None:
    price = GpuPrice(usd_per_gpu_hour=usd, as_of=DAY)
    per_usd = per_dollar(rate, price, gpus=gpus, weight_gpus=holding)

    assert per_usd.value * usd * max(gpus, holding) == pytest.approx(rate * 3600)


def test_prices_and_counts_that_cannot_be_are_refused() -> None:
    price, nan, inf = GpuPrice(usd_per_gpu_hour=1, as_of=DAY), math.nan, math.inf
    for usd in (0, -1, nan, inf):
        with pytest.raises(ValueError, match="must be positive and finite"):
            GpuPrice(usd_per_gpu_hour=usd, as_of=DAY)
    for rate, gpus, holding in ((-1, 1, 1), (nan, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="must be"):
            per_dollar(rate, price, gpus=gpus, weight_gpus=holding)
    for weights, memory in ((0, 1), (1, 0), (-1, 1), (1, inf)):
        with pytest.raises(ValueError, match="must be positive"):
            fewest_gpus(weights, memory)


def test_the_gpus_that_hold_the_model_and_all_of_a_result_are_paid_for() -> None:
    """138 GB do not fit 80: the page's 132,400 tokens for a dollar are half of that.

    8 copies on 8 GPUs cost 8, though one holds the model.
    """
    needed = fewest_gpus(2 * 68_976_648_192, 80e9)
    per_usd = per_dollar(
        110, GpuPrice(usd_per_gpu_hour=2.99, as_of=DAY), gpus=1, weight_gpus=needed
    )
    copies = per_dollar(800, GpuPrice(usd_per_gpu_hour=3.6, as_of=DAY), gpus=8, weight_gpus=1)

    assert (needed, per_usd.gpus) == (2, 2)
    assert per_usd.value == pytest.approx(132_441 / 2, abs=1)
    assert copies.value == pytest.approx(100_000)
    fewest = [fewest_gpus(weights, 80e9) for weights in (80e9, 80e9 + 1, 1)]
    assert [*fewest, fewest_gpus(7e11, 1.41e11)] == [1, 2, 1, 5]
