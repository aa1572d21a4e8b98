"""Run `pytest-mlperf kubernetes`: convert a plan to Jobs, and a Job that merges their results."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.fleet.plans import add_plan, read_plan
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.run.project import new_id
from pytest_mlperf.stores.results import Manifest

NODE_LABEL = "pytest-mlperf/accelerator"
"""Label of nodes with an accelerator; its value is the suite's name of it."""

PLAN_BYTES = 2**20
"""Maximum size of a ConfigMap: https://kubernetes.io/docs/concepts/configuration/configmap/."""

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
"""A part is complete whatever its results: the merging job judges. A part of a lost pod leaves no
mark and is restarted.

Options need "=": pytest derives its rootdir, and thus node ids, from words that are files."""

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

HELP = """\
Prints objects for `kubectl apply`: an indexed Job for each accelerator, with a
pod for each suite file, and a last Job that merges and judges their results.

needs: a plan; in the cluster, an image with the project and a volume claim

examples:
  $ pytest-mlperf kubernetes plan.json --image lab/mlperf:7 --claim results
      the jobs of what `pytest-mlperf plan --format json` printed
  $ pytest-mlperf kubernetes - --image lab/mlperf:7 --claim results
      the jobs of a plan that comes on stdin
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_plan(parser)
    parser.add_argument(
        "--image", required=True, help="container image whose working directory is the project"
    )
    parser.add_argument(
        "--claim", required=True, help="volume claim (ReadWriteMany) that all pods write to"
    )
    parser.add_argument(
        "--mount",
        type=_mount,
        action="append",
        default=[],
        metavar="CLAIM:/PATH",
        help="mount this volume claim (of models, for example) at /PATH in each pod; repeatable",
    )


def run(parsed: argparse.Namespace) -> int:
    """Print the Kubernetes objects of a plan as JSON, for `kubectl apply`."""
    print(json.dumps(objects(*read_plan(parsed.plan), parsed, new_id()), indent=1))
    return 0


def _mount(word: str) -> tuple[str, str]:
    claim, _, path = word.partition(":")
    if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", claim) or not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{word!r} is not CLAIM:/PATH, such as models:/models")
    return claim, path


def objects(plan: Manifest, text: str, to: argparse.Namespace, run: str) -> dict[str, Any]:
    """Return a Kubernetes List of the ConfigMap and Jobs of a plan, for `kubectl apply`.

    `text` is the plan's JSON, `to` the parsed arguments of the command, and `run` an id that
    becomes part of the objects' names and of the results folder.
    """
    if len(text.encode()) > PLAN_BYTES:
        raise MlperfError(
            f"the plan has {len(text.encode()):,} bytes, too many for a Kubernetes ConfigMap (at "
            f"most {PLAN_BYTES:,}): plan fewer suites"
        )
    data, jobs = {"plan.json": text}, plan.jobs
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named("plan", run), "data": data}
    names = _names(jobs)
    parts = (_measuring(plan, accelerator, name, to, run) for accelerator, name in names.items())
    items = [kept, *parts, _joining(jobs, names, to, run)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _names(accelerators: Mapping[str, Any]) -> dict[str, str]:
    names: dict[str, str] = {}
    for index, accelerator in enumerate(accelerators):
        name = re.sub(r"[^a-z0-9]+", "-", accelerator.lower()).strip("-")[:30] or "x"
        names[accelerator] = f"{name}-{index}" if name in names.values() else name
    return names


def _measuring(
    plan: Manifest, accelerator: str, name: str, to: argparse.Namespace, run: str
) -> dict[str, Any]:
    minutes = plan.jobs[accelerator]
    cases = (f"{place}) set -- {shlex.quote(suite)} ;;" for place, suite in enumerate(minutes))
    script = MEASURE.format(
        name=name,
        suites="\n".join(cases),
        accelerator=shlex.quote(accelerator),
        options="".join(f" {shlex.quote(word)}" for word in plan.options),
    )
    pod = _pod(script, to, run)
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
    """Return the resource limits of a container; {} for a CPU, which a node label selects.

    Names of MIG instances: https://github.com/NVIDIA/k8s-device-plugin, strategy "mixed".
    """
    count, name = split(accelerator)
    if name == "cpu":
        return {}
    instance = name.partition("_")[2]
    resource = f"nvidia.com/mig-{instance}" if instance else "nvidia.com/gpu"
    return {"limits": {resource: count}}


def _joining(
    jobs: Mapping[str, Mapping[str, int]],
    names: Mapping[str, str],
    to: argparse.Namespace,
    run: str,
) -> dict[str, Any]:
    parts = [f"{names[name]}.{n}" for name, minutes in jobs.items() for n in range(len(minutes))]
    # One node may run all parts of an accelerator, and restart each.
    minutes = max(sum(minutes.values()) for minutes in jobs.values()) * (1 + MAX_RESTARTS)
    script = MERGE.format(seconds=60 * minutes, parts=" ".join(parts), look=POLL_SECONDS)
    template = {"metadata": _named("merge", run, only_labels=True)}
    template["spec"] = _pod(script, to, run)
    return _job("merge", run, {"backoffLimit": 0, "template": template})


def _pod(script: str, to: argparse.Namespace, run: str) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "results", "persistentVolumeClaim": {"claimName": to.claim}},
        {"name": "plan", "configMap": {"name": f"mlperf-plan-{run}"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "results", "mountPath": RESULTS},
        {"name": "plan", "mountPath": PLAN, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - of a pod of its own
    ]
    for index, (claim, path) in enumerate(to.mount):
        name, of = f"mount-{index}", {"claimName": claim, "readOnly": True}
        volumes.append({"name": name, "persistentVolumeClaim": of})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    variables = {"MLPERF_RESULTS": f"{RESULTS}/{run}", "MLPERF_PLAN": f"{PLAN}/plan.json"}
    container = {
        "name": "mlperf",
        "image": to.image,
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
