"""A plan as objects of Kubernetes: an indexed Job for each accelerator, and one that joins them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.hardware.machine import split

NODE_LABEL = "pytest-mlperf/accelerator"
"""The label of nodes that have an accelerator; its value is the suite's word."""

PLAN_BYTES = 2**20
"""Of a ConfigMap at most: https://kubernetes.io/docs/concepts/configuration/configmap/."""

MAX_RESTARTS = 2
RESULTS, PLAN = "/mlperf/results", "/mlperf/plan"

MEASURE = """\
mkdir -p "$MLPERF_RESULTS/parts"
part={name}.$JOB_COMPLETION_INDEX
case $JOB_COMPLETION_INDEX in
{suites}
esac
python3 -m pytest "$1" --mlperf-accelerator={accelerator}{options} \\
  --mlperf-manifest="$MLPERF_PLAN" --mlperf-runs-dir="$MLPERF_RESULTS/$part" \\
  --mlperf-json="$MLPERF_RESULTS/parts/$part.json"
echo $? > "$MLPERF_RESULTS/parts/$part.done"
"""
"""A part is over whatever its tests say: the job that joins them judges. One whose pod is lost
leaves no mark, and is begun anew.

Options have "=": of words that are files pytest makes its rootdir, where node ids start."""

MERGE = """\
until=$(($(date +%s) + {seconds}))
for part in {parts}; do
  while [ ! -e "$MLPERF_RESULTS/parts/$part.done" ] && [ "$(date +%s)" -lt "$until" ]; do
    sleep {look}
  done
done
exec python3 -m pytest_mlperf merge "$MLPERF_RESULTS/parts" --manifest "$MLPERF_PLAN" \\
  -o "$MLPERF_RESULTS/results.json" --junit "$MLPERF_RESULTS/junit.xml"
"""

POLL_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where the jobs run.

    Attributes:
        image: A container image whose working directory is the project, with its engines.
        claim: The PersistentVolumeClaim that all pods write results to (ReadWriteMany).
        mounts: Other claims by the path where pods find them, such as models; only read.
    """

    image: str
    claim: str
    mounts: Mapping[str, str]


def objects(
    jobs: Mapping[str, Mapping[str, int]],
    plan: str,
    cluster: Cluster,
    *,
    run: str,
    options: Sequence[str],
) -> dict[str, Any]:
    """Return a List of objects for `kubectl apply`.

    `jobs` has, by accelerator and suite file, the minutes after which a part counts as hung. `plan`
    is its manifest as JSON, `run` its id, which names objects and results folder. `options` of
    pytest are for all suites. Raises MlperfError if the manifest is larger than a cluster keeps.
    """
    if len(plan.encode()) > PLAN_BYTES:
        raise MlperfError("this plan is too large for a ConfigMap of Kubernetes: name fewer suites")
    data = {"plan.json": plan}
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named("plan", run), "data": data}
    names = _names(jobs)
    items = [kept]
    for accelerator, minutes in jobs.items():
        items.append(_measuring(accelerator, names[accelerator], minutes, cluster, run, options))
    items.append(_joining(jobs, names, cluster, run))
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _names(accelerators: Mapping[str, Any]) -> dict[str, str]:
    names: dict[str, str] = {}
    for place, accelerator in enumerate(accelerators):
        name = re.sub(r"[^a-z0-9]+", "-", accelerator.lower()).strip("-")[:30] or "x"
        names[accelerator] = f"{name}-{place}" if name in names.values() else name
    return names


def _measuring(
    accelerator: str,
    name: str,
    minutes: Mapping[str, int],
    cluster: Cluster,
    run: str,
    options: Sequence[str],
) -> dict[str, Any]:
    cases = (f"{place}) set -- {shlex.quote(suite)} ;;" for place, suite in enumerate(minutes))
    script = MEASURE.format(
        name=name,
        suites="\n".join(cases),
        accelerator=shlex.quote(accelerator),
        options="".join(f" {shlex.quote(word)}" for word in options),
    )
    pod = _pod(script, cluster, run)
    pod["nodeSelector"] = {NODE_LABEL: accelerator}
    pod["activeDeadlineSeconds"] = 60 * max(minutes.values())
    pod["containers"][0]["resources"] = _resources(accelerator)
    spec = {
        "completionMode": "Indexed",
        "completions": len(minutes),
        "parallelism": len(minutes),
        "backoffLimitPerIndex": MAX_RESTARTS,
        "template": {"metadata": _named(name, run, only_labels=True), "spec": pod},
    }
    return _job(name, run, spec)


def _resources(accelerator: str) -> dict[str, Any]:
    """Return what a container asks for; of a CPU nothing, as its node is chosen by its label.

    Names of MIG instances: https://github.com/NVIDIA/k8s-device-plugin, strategy "mixed".
    """
    count, name = split(accelerator)
    if name == "cpu":
        return {}
    instance = name.partition("_")[2]
    resource = f"nvidia.com/mig-{instance}" if instance else "nvidia.com/gpu"
    return {"limits": {resource: count}}


def _joining(
    jobs: Mapping[str, Mapping[str, int]], names: Mapping[str, str], cluster: Cluster, run: str
) -> dict[str, Any]:
    parts = [f"{names[name]}.{n}" for name, minutes in jobs.items() for n in range(len(minutes))]
    # One node may have to measure all parts of an accelerator, and each anew.
    minutes = max(sum(minutes.values()) for minutes in jobs.values()) * (1 + MAX_RESTARTS)
    script = MERGE.format(seconds=60 * minutes, parts=" ".join(parts), look=POLL_SECONDS)
    template = {"metadata": _named("merge", run, only_labels=True)}
    template["spec"] = _pod(script, cluster, run)
    return _job("merge", run, {"backoffLimit": 0, "template": template})


def _pod(script: str, cluster: Cluster, run: str) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "results", "persistentVolumeClaim": {"claimName": cluster.claim}},
        {"name": "plan", "configMap": {"name": f"mlperf-plan-{run}"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "results", "mountPath": RESULTS},
        {"name": "plan", "mountPath": PLAN, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - of a pod of its own
    ]
    for place, (path, claim) in enumerate(cluster.mounts.items()):
        name, of = f"mount-{place}", {"claimName": claim, "readOnly": True}
        volumes.append({"name": name, "persistentVolumeClaim": of})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    variables = {"MLPERF_RESULTS": f"{RESULTS}/{run}", "MLPERF_PLAN": f"{PLAN}/plan.json"}
    container = {
        "name": "mlperf",
        "image": cluster.image,
        "command": ["sh", "-c", script],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": mounts,
    }
    return {"restartPolicy": "Never", "containers": [container], "volumes": volumes}


def _job(name: str, run: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _named(name, run), "spec": spec}


def _named(name: str, run: str, *, only_labels: bool = False) -> dict[str, Any]:
    labels = {"labels": {"app.kubernetes.io/name": "pytest-mlperf", "pytest-mlperf/plan": run}}
    return labels if only_labels else {"name": f"mlperf-{name}-{run}", **labels}


def mounts_of(words: Sequence[str]) -> dict[str, str]:
    """Return claims by path, of words such as "models:/models"."""
    mounts = {}
    for word in words:
        claim, _, path = word.partition(":")
        if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", claim) or not path.startswith("/"):
            raise MlperfError(f"--mount {word!r}: write CLAIM:/path, as models:/models")
        mounts[path] = claim
    return mounts


def text_of_list(content: Mapping[str, Any]) -> str:
    """Return it as JSON, which kubectl reads as it reads YAML."""
    return json.dumps(content, indent=1)
