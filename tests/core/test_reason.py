"""Keys of INVALID runs, and how runs that were measured again are told."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.reason import Key, Reason, measured_again

DOCS = Path(__file__).parents[2] / "docs" / "validity.md"
HOT = Reason(key=Key.HW_THERMAL_SLOWDOWN, text="heat for 1.20 s")
HOTTER = Reason(key=Key.HW_THERMAL_SLOWDOWN, text="heat for 2.40 s")
LOST = Reason(key=Key.GPU_LOST, text="the GPU was lost")


def test_each_reason_is_told_once_with_its_latest_figures() -> None:
    assert measured_again([[HOT]]) == "1 run INVALID, measured again: heat for 1.20 s"
    assert measured_again([[HOT], [HOTTER, LOST]]) == (
        "2 runs INVALID, measured again: heat for 2.40 s; the GPU was lost"
    )


def test_every_key_is_on_the_page() -> None:
    page = DOCS.read_text("utf-8")

    assert [key for key in Key if f"`{key}`" not in page] == []
