"""Run cases on a Ray cluster (`--mlperf-on`), and plans on Slurm and Kubernetes.

The pytest process collects tests and reports results; its child process `bridge.py`, the only one
that imports Ray, connects to the cluster. On a node, `node.py` runs in a Ray actor and starts
another pytest process, in which `child.py` sends every test report to the first pytest process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.addons import Command

if TYPE_CHECKING:
    import pytest

    from pytest_mlperf.extension import OptionGroup
    from pytest_mlperf.plugin.session import MlperfSession

API = 1

KUBERNETES = Command(
    "write a plan as jobs of a Kubernetes cluster", f"{__name__}.kubernetes", "Several machines"
)
SLURM = Command(
    "write a plan as a script that submits Slurm jobs", f"{__name__}.slurm", "Several machines"
)

LOCAL = "local"


def mlperf_addoptions(group: OptionGroup) -> None:
    """Declare `--mlperf-on`."""
    group.add(
        "on",
        "local|ray:auto|ADDRESS",
        "run cases on this machine (local, the default), or on the nodes of a Ray cluster that "
        "have the accelerator, one case at a time per node: ray://HEAD:10001 from anywhere, "
        "HEAD:6379 or ray:auto on a node. The project is copied to the nodes; models and data must "
        "already be there",
        LOCAL,
        convert=cluster_address,
        group="ci",
        beside=True,
        elsewhere=True,
    )


def cluster_address(text: str) -> str:
    """Return "local" or the Ray address in `--mlperf-on`; raise ValueError for other texts."""
    address = text.removeprefix("ray:") if text == "ray:auto" else text
    if address in {LOCAL, "auto"} or re.fullmatch(r"(ray://)?[\w.-]+:\d+", address):
        return address
    raise ValueError


def mlperf_runtestloop(
    session: pytest.Session, plan: MlperfSession, options: Mapping[str, Any]
) -> bool | None:
    """Run the cases on the cluster that `--mlperf-on` names; return None without that option."""
    if options["on"] == LOCAL:
        return None
    from pytest_mlperf.addons.fleet.running import require_ray, run

    require_ray(options["on"])
    return run(session, plan)
