"""May baselines be made from this run of gpu.yml? Prints its artifacts with their digests."""

from __future__ import annotations

import os
import sys

import gpu_run
from api import Refused, call, fail, pages, plain

KEPT = ("merged-results", "baselines-mlperf-")
"""How the names of the artifacts begin that baselines are made of."""


def artifacts(run_id: str, repository: str) -> list[str]:
    """Return a line for each artifact that is used, with its digest.

    Args:
        run_id: Of the run.
        repository: "OWNER/NAME".

    Raises:
        Refused: The run is another workflow's, a fork's, or left nothing.
    """
    if not (run_id.isascii() and run_id.isdigit()):
        raise Refused("run_id is the number at the end of the run's address")
    run = call(f"repos/{repository}/actions/runs/{run_id}")
    gpu_run.check(run, repository)
    if gpu_run.approved(run):
        raise Refused(f"run {run_id} measured a fork's commit: baselines are made from a branch")
    found = pages(f"repos/{repository}/actions/runs/{run_id}/artifacts", "artifacts")
    kept = [one for one in found if str(one["name"]).startswith(KEPT) and not one["expired"]]
    if not any(one["name"] == KEPT[0] for one in kept):
        raise Refused(f"run {run_id} has no artifact {KEPT[0]} any more")
    lines = [f"Run {run_id} of {run['head_branch']} at {run['head_sha']}:", ""]
    lines += [f"- `{one['name']}` {one['digest']}" for one in kept]
    return [plain(line) for line in lines]


if __name__ == "__main__":
    try:
        print("\n".join(artifacts(sys.argv[1], os.environ["GITHUB_REPOSITORY"])))
    except Refused as error:
        fail(str(error))
