"""Evaluate the NVLinks of a run's GPUs: links that are down, and their errors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.hardware.nvml_quantities import RECOVERY
from pytest_mlperf.run.power._gpu import GpuLog

USUAL_LINKS = {
    r"V100-SXM2": 6,
    r"A100-SXM4": 12,
    r"A800-SXM4|H800$": 8,
    r"H100 80GB HBM3$": 18,
    r"H200$": 18,
    r"B[23]00$": 18,
}
"""NVLinks of boards in a fixed system, by NVML's product name.

Those of PCIe cards depend on their bridges. Source: NVIDIA's data sheets, 25 GB/s per link and
direction from NVLink 2 to 4 (300, 600, 900 GB/s), 50 GB/s for NVLink 5 (1.8 TB/s).
"""

ERRORS = {
    "replay": "replays",
    "crc": "checksum errors",
    "packet": "malformed packets",
    "overrun": "buffer overruns",
    "receive": "receive errors",
    "integrity": "integrity errors",
}
"""Kinds of errors that the link corrects, in words."""


def link_doubts(gpu: GpuLog, begin_s: float, end_s: float) -> tuple[list[Reason], list[Sign]]:
    """Return reasons against a window, and other observations."""
    links_before, links_after = gpu.links(begin_s, end_s) or ({}, {})
    fell = [link for link, up in links_before.items() if up and not links_after.get(link, True)]
    errors = gpu.link_errors(begin_s, end_s)
    invalid = []
    if fell:
        text = f"NVLink {', '.join(map(str, fell))} went down during the run"
        invalid.append(Reason(key=Key.NVLINK_DOWN, text=text))
    if trained := errors.pop(RECOVERY, {}):
        text = f"NVLink was trained anew, and carried nothing meanwhile: {_times(trained)}"
        invalid.append(Reason(key=Key.NVLINK_RECOVERY, text=text))
    signs = []
    masks = gpu.fabric_health(begin_s, end_s) or (0, 0)
    ill, later = (
        [word for at, word in HEALTH_PROBLEMS.items() if mask >> at & 3 == 1] for mask in masks
    )
    if turned := [word for word in later if word not in ill]:
        text = f"NVSwitch fell ill during the run: {', '.join(turned)}"
        invalid.append(Reason(key=Key.NVSWITCH, text=text))
    if ill:
        signs.append(Sign(key=SignKey.NVSWITCH, text=f"NVSwitch is not well: {', '.join(ill)}"))
    if text := _lacking(links_before, str(gpu.facts.get("identity", {}).get("name"))):
        signs.append(Sign(key=SignKey.NVLINK_DOWN, text=text))
    if errors:
        mended = "; ".join(f"{ERRORS.get(kind, kind)} {_times(n)}" for kind, n in errors.items())
        text = f"NVLink errors during the run, which were mended: {mended}"
        signs.append(Sign(key=SignKey.NVLINK_ERRORS, text=text))
    return invalid, signs


HEALTH_PROBLEMS = {
    0: "its bandwidth is degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "an access timed out and is being recovered",
}
"""Two bits of a fabric's health mask per problem: 1 is yes, 2 no, 0 unknown."""


def _lacking(links: Mapping[int, bool], product: str) -> str:
    """Describe links that are down, or return ""; a PCIe card without a bridge lacks none."""
    up = sum(links.values())
    usual = next((count for kind, count in USUAL_LINKS.items() if re.search(kind, product)), 0)
    most = max(usual, len(links) if up else 0)
    if not links or up >= most:
        return ""
    down = [link for link, is_up in links.items() if not is_up] if up else []
    named = f"; down: {', '.join(map(str, down))}" if down else ""
    return f"{up} of {most} NVLinks up{named}"


def _times(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{count} on link {link}" for link, count in counts.items())
