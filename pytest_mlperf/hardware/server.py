"""Determine a server's hardware from the answers of probe, exporter, kubectl and server.

Answers are untrusted: the reader limits their size; this module checks their content.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pytest_mlperf.core.baseline import SERVER_FACT, Property
from pytest_mlperf.core.energy.exporter import read_exporter
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.server.identity import HARDWARE, SOURCE, SOURCES, ServerIdentity
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware import probe
from pytest_mlperf.hardware.machine import Machine, split
from pytest_mlperf.hardware.nvidia import rounded_w
from pytest_mlperf.hardware.specs import class_of

MAX_TEXT = 200
"""Longest text of a property; longer ones are cut."""

USED_GIB = 1.0
"""Memory in use of a GPU that holds a model."""

PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-accelerator",
)
MEMORY_LABEL, DRIVER_LABEL = "nvidia.com/gpu.memory", "nvidia.com/cuda.driver-version.full"
RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
"""Labels of Kubernetes nodes, and resources of containers, that tell a server's accelerators."""

START_METRIC = "process_start_time_seconds"

PAGES = ("/version", "/metrics", "/info", "/props", "/server_info", "/v1/manifest")
"""Pages on which vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and NIM describe themselves."""

SOFTWARE = (
    *("version", "build_info", "sha", "quantization", "model_dtype", "total_slots"),
    *("tp_size", "pp_size", "dp_size", "ep_size", "num_shard", "chunked_prefill_size"),
)
"""Keys of these pages that describe the software, and do not differ from start to start."""


def _reported(
    source: str,
    gpus: Sequence[Mapping[str, Property]],
    accelerator: str,
    *,
    node: str = "",
    cpu: Mapping[str, Property] = MappingProxyType({}),
    facts: Mapping[str, str] = MappingProxyType({}),
    **others: Any,
) -> ServerIdentity:
    """Return the identity by one source; raise RunError if it lacks the suite's accelerator."""
    rows = ({"uuid": str(number), "mig": None, **gpu} for number, gpu in enumerate(gpus))
    machine = Machine(cpu=cpu, gpus=tuple(rows))
    # An accelerator without a product name may be what the suite says.
    unnamed = any(str(gpu["gpu"]).startswith("0x") for gpu in gpus)
    if gpus and (unnamed or split(accelerator)[1] == "cpu"):
        kind, number = next(iter(machine.classes.items()))
        accelerator = f"{number}x{kind}"
    elif not machine.has(accelerator):
        raise _fault(
            f"the suite says {accelerator}, and {source} reports "
            f"{machine.names.removesuffix('cpu').rstrip(', ') or 'no GPU'}: correct accelerators, "
            "or ask the machine on which the server runs"
        )
    properties = machine.identity(accelerator) | ({"node": node} if node else {})
    if len(gpus) > split(accelerator)[0]:
        properties["node_gpus"] = ", ".join(f"{n}x{c}" for c, n in machine.classes.items())
    gpu = properties.get("gpu")
    words = f"{properties['gpus']} x {gpu}" if gpu else str(properties.get("cpu"))
    versions = {f"server.{name}": text for name, text in facts.items() if text}
    surroundings = {HARDWARE: words, **versions}
    return ServerIdentity(properties=properties, surroundings=surroundings, **others)


def identified(
    url: str,
    accelerator: str,
    reports: Mapping[str, ServerIdentity],
    pages: Mapping[str, bytes],
    headers: Mapping[str, str],
    starts: Collection[float],
    *,
    time_s: float,
) -> ServerIdentity:
    """Return a server's identity by its most trusted source; raise RunError if sources disagree.

    Args:
        accelerator: Accelerator that the suite declares for the server; "cpu" declares none.
        reports: Identity by source: probe, exporter, kubernetes.
        pages, headers: The server's own pages by path, and their headers in lower case.
        starts: Start times on the metrics page, of several connections.
        time_s: Time of the answers, monotonic [s].
    """
    if report := of_server(pages, headers, accelerator):
        reports = {**reports, "server": report}
    texts = {name: reports[name].surroundings[HARDWARE] for name in SOURCES if name in reports}
    names = {str(name) for one in reports.values() if (name := one.properties.get("gpu"))}
    if len({class_of(name) for name in names}) > 1:
        raise _fault(
            "the sources of the server's hardware disagree: "
            f"{', '.join(f'{name} says {text}' for name, text in texts.items())}; ask the machine "
            "on which the server runs"
        )
    texts |= {} if accelerator == "cpu" else {"declared": accelerator}
    source = next(iter(texts), "unknown")
    best = reports.get(source) or ServerIdentity(properties={"hardware": texts.get(source)})
    several = f"{len(starts)} processes or more answer at this url: workers, or a load balancer"
    place = {} if source in SOURCES[:3] else {"url": place_of(url)}
    return replace(
        best,
        properties={SOURCE: source, **place, **best.properties},
        surroundings={
            HARDWARE: texts.get(source, "unknown"),
            **best.surroundings,
            "server.sources": "; ".join(f"{name}: {text}" for name, text in texts.items()),
        },
        facts=dict(_software(pages, headers)),
        notes=(*best.notes, *([several] if len(starts) > 1 else [])),
        time_s=time_s,
    )


def place_of(url: str) -> str:
    """Return host, port and path of a url: "gpu-box:8000/v1"."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _fault(text: str) -> RunError:
    return RunError("server", text)


def _document(answer: bytes, source: str) -> Any:
    try:
        return parse_json(answer)
    except (ValueError, UnicodeDecodeError):
        text = broken(answer[:MAX_TEXT].decode("utf-8", "replace").strip())
        raise _fault(f"{source} printed {text or 'nothing'!r}, which is not JSON") from None


def _property(value: Any) -> Property:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if value is None or is_number else broken(str(value))[:MAX_TEXT]


def of_probe(answer: bytes, accelerator: str, url: str) -> ServerIdentity:
    """Return the hardware that a probe reports; raise RunError if it lacks the accelerator."""
    report = _document(answer, "the probe")
    try:
        if report["kind"] != probe.KIND or report["schema"] != probe.SCHEMA:
            raise TypeError
        gpus = [{n: _property(v) for n, v in gpu["identity"].items()} for gpu in report["gpus"]]
        used_gib = [float(gpu["memory_used_gib"] or math.inf) for gpu in report["gpus"]]
        node, ports = str(_property(report["node"])), [int(port) for port in report["ports"]]
        cpu = {name: _property(report[name]) for name in ("cpu", "cores")} | {"node": node}
        facts = {name: str(_property(text)) for name, text in report["facts"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _fault(
            "the probe printed JSON that is not of pytest-mlperf machine --json: use the same "
            "version there, or a Python that reads the file from stdin (python3 -)"
        ) from None
    if report["trouble"]:
        raise _fault(f"the probe reports: {_property(report['trouble'])}")
    host, _, port = place_of(url).partition("/")[0].rpartition(":")
    is_closed = port.isdigit() and ports and int(port) not in ports
    closed = f"the probe's machine does not listen on port {port}: it may be another one"
    count, kind = split(accelerator)
    busy = sum(gib >= USED_GIB for gib in used_gib)
    idle = f"the suite says {accelerator}, and only {busy} GPUs hold a model: correct accelerators"
    return _reported(
        "the probe",
        gpus,
        accelerator,
        cpu=cpu,
        node=node,
        facts=facts,
        notes=(closed,) if is_closed and not host.startswith(("localhost", "127.", "[::1")) else (),
        idle=idle if kind != "cpu" and busy < count else "",
    )


def of_exporter(page: bytes, chosen: Sequence[str], accelerator: str) -> ServerIdentity:
    """Return the GPUs of an exporter's page; raise RunError if it lacks the accelerator."""
    gpus = read_exporter(page, chosen)
    if not gpus:
        raise _fault("the exporter reports no GPU: name the exporter beside the server")
    return _reported(
        "the exporter",
        [
            {"gpu": _property(gpu.name), "power_limit_w": gpu.limit_w and rounded_w(gpu.limit_w)}
            for gpu in gpus.values()
        ],
        accelerator,
        node=probe.hashed("".join(sorted(map(probe.hashed, gpus)))),
        facts={"driver": ", ".join(sorted({broken(gpu.driver) for gpu in gpus.values()}))},
        joules={uuid: gpu.joules for uuid, gpu in gpus.items() if gpu.joules is not None},
    )


def of_kubernetes(get: Callable[..., bytes], place: str, accelerator: str) -> ServerIdentity:
    """Return the accelerators of pods by the labels of their nodes; raise RunError if unknown.

    Args:
        get: Calls `kubectl get` with these further arguments; returns its JSON output.
        place: Namespace and selector of the pods: "serving/app=vllm".
    """
    namespace, _, selector = place.partition("/")
    counts, gpus, drivers = Counter[str](), list[dict[str, Property]](), list[str]()
    try:
        pods = _document(get("pods", "-n", namespace, "-l", selector), "kubectl get pods")
        for pod in pods["items"]:
            limits = [
                one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]
            ]
            counts[str(pod["spec"]["nodeName"])] += sum(
                int(limit.get(name, 0)) for limit in limits for name in RESOURCES
            )
        if not counts:
            raise _fault("kubectl shows no pod: correct kubernetes, NAMESPACE/SELECTOR")
        nodes = _document(get("nodes", *counts), "kubectl get nodes")
        items = nodes.get("items", [nodes])  # one node has no list around it
        labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in items}
        for name, count in counts.items():
            tags = labels[name]
            product = str(next(tags[label] for label in PRODUCT_LABELS if label in tags))
            product = product.upper() if product.islower() else product
            memory = {"memory_gib": int(tags[MEMORY_LABEL]) // 1024} if MEMORY_LABEL in tags else {}
            gpus += [{"gpu": _property(product.replace("-", " ")), **memory}] * (count or 1)
            drivers.append(str(_property(tags.get(DRIVER_LABEL, ""))))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        raise _fault(
            f"kubectl shows no accelerator of {_property(' '.join(counts)) or 'running pods'}: "
            f"check that their nodes have a label such as {PRODUCT_LABELS[0]}"
        ) from None
    names = sorted({str(gpu["gpu"]) for gpu in gpus})
    return _reported(
        "kubectl",
        gpus,
        accelerator,
        node=probe.hashed(" ".join(sorted(counts))),
        facts={"driver": ", ".join(dict.fromkeys(drivers))},
        notes=(f"the server's nodes are unequal: {', '.join(names)}",) if len(names) > 1 else (),
    )


def of_server(
    pages: Mapping[str, bytes], headers: Mapping[str, str], accelerator: str
) -> ServerIdentity | None:
    """Return the GPUs that a server itself reports: TGI's header, NIM's manifest; or None."""
    match = re.fullmatch(r"(?:(\d{1,3})-)?(nvidia.*|amd.*)", headers.get("x-compute-type", ""))
    names = [match[2].upper()] * int(match[1] or 1) if match else []
    tags = json.dumps(_json(pages.get("/v1/manifest", b"")))
    profiles = sorted(set(re.findall(r'"gpu": "([^"]{1,60})"', tags)))
    names = names or (profiles if len(profiles) == 1 else [])  # else the model runs on any of them
    gpus = [{"gpu": _property(name.replace("-", " "))} for name in names]
    return _reported("the server", gpus, accelerator) if gpus else None


def _json(page: bytes) -> Any:
    try:
        return parse_json(page)
    except (ValueError, UnicodeDecodeError):
        return None


def _software(pages: Mapping[str, bytes], headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield facts on the server's software; "pages" identifies the kind of server."""
    paths = [path for path in PAGES if path in pages]
    yield f"{SERVER_FACT}pages", " ".join((broken(headers.get("server", "")), *paths))[:MAX_TEXT]
    for document in map(_json, (pages[path] for path in paths)):
        for key in SOFTWARE if isinstance(document, dict) else ():
            if isinstance(document.get(key), str | int | float):
                yield f"{SERVER_FACT}{key}", str(_property(document[key]))
