"""Determine a server's hardware from the answers of probe, exporter, kubectl and server.

Answers are untrusted: the reader limits their size; this module checks their content.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, TypeAdapter, ValidationError

from pytest_mlperf.core.baseline import SERVER_FACT, Property
from pytest_mlperf.core.energy.exporter import read_exporter
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.numbers import Count, NotNegative
from pytest_mlperf.core.server.identity import HARDWARE, SOURCE, SOURCES, ServerIdentity
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware import probe
from pytest_mlperf.hardware.machine import Machine, split
from pytest_mlperf.hardware.specs import class_of

MAX_TEXT = 200
"""Longest text of a property; longer ones are cut."""

MAX_GPUS = 4096
"""Most GPUs of a server; the time to describe them grows with the square of their number."""

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
    """Return a server's identity from `source`; raise RunError if `gpus` lack the accelerator."""
    if len(gpus) > MAX_GPUS:
        raise _fault(
            f"{source} reports more than {MAX_GPUS:,} GPUs: let it report only the server's GPUs"
        )
    rows = ({"uuid": str(number), "mig": None, **gpu} for number, gpu in enumerate(gpus))
    machine = Machine(cpu=cpu, gpus=tuple(rows))
    # An accelerator without a product name may be what the suite says.
    unnamed = any(not gpu["gpu"] or str(gpu["gpu"]).startswith("0x") for gpu in gpus)
    if gpus and (unnamed or split(accelerator)[1] == "cpu"):
        kind, number = next(iter(machine.classes.items()))
        accelerator = f"{number}x{kind}"
    elif not machine.has(accelerator):
        raise _fault(
            f"the suite says {accelerator}, and {source} reports "
            f"{machine.names.removesuffix('cpu').rstrip(', ') or 'no GPU'}: correct accelerators, "
            "or run the probe on the server's machine"
        )
    properties = machine.identity(accelerator) | ({"node": node} if node else {})
    if len(gpus) > split(accelerator)[0]:
        properties["node_gpus"] = ", ".join(f"{n}x{c}" for c, n in machine.classes.items())
    words = str(properties.get("cpu"))
    if gpus:
        words = f"{properties['gpus']} x {properties['gpu'] or 'GPU'}"
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
        reports: Identity by source: "probe", "exporter", "kubernetes".
        pages, headers: The server's responses by path; its HTTP headers, with lower-case names.
        starts: Process start times on the metrics page, read over several connections.
        time_s: Monotonic time at which the server answered [s].
    """
    if report := server_identity(pages, headers, accelerator):
        reports = {**reports, "server": report}
    texts = {name: reports[name].surroundings[HARDWARE] for name in SOURCES if name in reports}
    names = {str(name) for one in reports.values() if (name := one.properties.get("gpu"))}
    if len({class_of(name) for name in names}) > 1:
        raise _fault(
            "the server's hardware is reported differently: "
            f"{', '.join(f'{name} says {text}' for name, text in texts.items())}; set the option "
            "that reads another machine to the server's (probe, exporter, kubernetes)"
        )
    texts |= {} if accelerator == "cpu" else {"declared": accelerator}
    source = next(iter(texts), "unknown")
    best = reports.get(source) or ServerIdentity(properties={"hardware": texts.get(source)})
    several = (
        f"at least {len(starts)} processes answer at this url (workers, or servers behind a load "
        "balancer): they may run on different hardware"
    )
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
    """Return host, port and path of a URL, without user and password: "gpu-box:8000/v1"."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _fault(text: str) -> RunError:
    return RunError("server", text)


def _no_json(source: str, answer: bytes) -> RunError:
    text = broken(answer[:MAX_TEXT].decode("utf-8", "replace").strip())
    return _fault(f"{source} printed {text or 'nothing'!r}, which is not JSON")


def _parse_document(answer: bytes, source: str = "") -> Any:
    """Parse a JSON answer; if malformed, raise RunError about `source`, or return None for ""."""
    with contextlib.suppress(ValueError):
        return parse_json(answer)
    if source:
        raise _no_json(source, answer)
    return None


def _text(value: object) -> str:
    return broken(str(value))[:MAX_TEXT]


Text = Annotated[str, AfterValidator(lambda text: broken(text)[:MAX_TEXT])]


@dataclass(frozen=True, kw_only=True)
class _ProbedGpu:
    """Hold the checked values of one GPU in a hardware probe's report, see `Nvml.gpu`."""

    identity: dict[str, bool | Count | NotNegative | Text | None]
    memory_used_gib: NotNegative | None

    def __post_init__(self) -> None:
        if "gpu" not in self.identity:
            raise ValueError("without the name of the GPU")


@dataclass(frozen=True, kw_only=True)
class _Probed:
    """Hold the checked values of a report by a server's hardware probe, see `probe.report`."""

    kind: Literal["pytest-mlperf machine"]
    schema: Literal[1]
    node: Text
    cpu: Text
    cores: Count | NotNegative
    gpus: list[_ProbedGpu]
    facts: dict[str, Text]
    ports: list[Count]
    trouble: Text | None


_PROBED = TypeAdapter(_Probed)


def parse_probe(answer: bytes, accelerator: str, url: str) -> ServerIdentity:
    """Parse the JSON of a probe to a server's hardware; RunError if `accelerator` is missing."""
    try:
        report = _PROBED.validate_json(answer, strict=True)
    except ValidationError as error:
        defect = error.errors()[0]
        if defect["type"] == "json_invalid":
            raise _no_json("the probe", answer) from None
        raise _fault(
            "the probe printed JSON that is not of pytest-mlperf machine --json "
            f"({'.'.join(map(str, defect['loc']))} is wrong): use the same version of "
            'pytest-mlperf there, or set probe = "ssh HOST python3 -"'
        ) from None
    if report.trouble:
        raise _fault(f"the probe reports: {report.trouble}")
    host, _, port = place_of(url).partition("/")[0].rpartition(":")
    is_closed = port.isdigit() and report.ports and int(port) not in report.ports
    closed = f"the probe's machine does not listen on port {port}: is it the server's machine?"
    count, kind = split(accelerator)
    busy = sum((gpu.memory_used_gib or math.inf) >= USED_GIB for gpu in report.gpus)
    idle = f"the suite says {accelerator}, but only {busy} GPUs hold a model: correct accelerators"
    return _reported(
        "the probe",
        [gpu.identity for gpu in report.gpus],
        accelerator,
        cpu={"cpu": report.cpu, "cores": report.cores, "node": report.node},
        node=report.node,
        facts=report.facts,
        notes=(closed,) if is_closed and not host.startswith(("localhost", "127.", "[::1")) else (),
        idle=idle if kind != "cpu" and busy < count else "",
    )


def identify_by_exporter(page: bytes, chosen: Sequence[str], accelerator: str) -> ServerIdentity:
    """Return a server's identity from a DCGM page; RunError if no `chosen` GPU or host is in it."""
    gpus = read_exporter(page, chosen)
    if not gpus:
        listed = "no GPU: correct its URL"
        if chosen:
            listed = f"none of gpus = {list(chosen)}: correct gpus"
        raise _fault(f"the page of the option exporter lists {listed}")
    boards = [(_text(gpu.name), gpu.limit_w) for gpu in gpus.values()]
    return _reported(
        "the exporter",
        [{"gpu": n or None, "power_limit_w": w and probe.rounded_w(w)} for n, w in boards],
        accelerator,
        node=probe.hashed("".join(sorted(map(probe.hashed, gpus)))),
        facts={"driver": ", ".join(sorted({broken(gpu.driver) for gpu in gpus.values()}))},
        joules={uuid: gpu.joules for uuid, gpu in gpus.items() if gpu.joules is not None},
    )


def of_kubernetes(get: Callable[..., bytes], place: str, accelerator: str) -> ServerIdentity:
    """Return the accelerators of pods from the labels of their nodes; raise RunError if unknown.

    Args:
        get: Runs `kubectl get` with the given arguments; returns its JSON output.
        place: Namespace and label selector of the pods: "serving/app=vllm".
    """
    namespace, _, selector = place.partition("/")
    counts, gpus, drivers = Counter[str](), list[dict[str, Property]](), list[str]()
    try:
        pods = _parse_document(get("pods", "-n", namespace, "-l", selector), "kubectl get pods")
        for pod in pods["items"]:
            spec = pod["spec"]
            limits = [one.get("resources", {}).get("limits", {}) for one in spec["containers"]]
            used = (int(limit.get(name, 0)) for limit in limits for name in RESOURCES)
            counts[str(spec["nodeName"])] += sum(used)
        if not counts:
            raise _fault('kubectl shows no pod: correct kubernetes = "NAMESPACE/SELECTOR"')
        nodes = _parse_document(get("nodes", *counts), "kubectl get nodes")
        items = nodes.get("items", [nodes])  # one node has no list around it
        labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in items}
        for name, count in counts.items():
            tags = labels[name]
            product = str(next(tags[label] for label in PRODUCT_LABELS if label in tags))
            product = product.upper() if product.islower() else product
            memory = {"memory_gib": int(tags[MEMORY_LABEL]) // 1024} if MEMORY_LABEL in tags else {}
            gpus += [{"gpu": _text(product.replace("-", " ")), **memory}] * max(
                1, min(count, MAX_GPUS + 1)
            )
            drivers.append(_text(tags.get(DRIVER_LABEL, "")))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        raise _fault(
            f"kubectl shows no accelerator of {_text(' '.join(counts)) or 'running pods'}: "
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


def server_identity(
    pages: Mapping[str, bytes], headers: Mapping[str, str], accelerator: str
) -> ServerIdentity | None:
    """Identify a server's GPUs by TGI's header or NIM's manifest; None if neither names them."""
    match = re.fullmatch(r"(?:(\d{1,3})-)?(nvidia.*|amd.*)", headers.get("x-compute-type", ""))
    names = [match[2].upper()] * int(match[1] or 1) if match else []
    tags = json.dumps(_parse_document(pages.get("/v1/manifest", b"")))
    profiles = sorted(set(re.findall(r'"gpu": "([^"]{1,60})"', tags)))
    names = names or (profiles if len(profiles) == 1 else [])  # else the model runs on any of them
    gpus = [{"gpu": _text(name.replace("-", " "))} for name in names]
    return _reported("the server", gpus, accelerator) if gpus else None


def _software(pages: Mapping[str, bytes], headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) facts on the server's software; "pages" lists the paths it serves."""
    paths = [path for path in PAGES if path in pages]
    yield f"{SERVER_FACT}pages", " ".join((broken(headers.get("server", "")), *paths))[:MAX_TEXT]
    for document in map(_parse_document, (pages[path] for path in paths)):
        for key in SOFTWARE if isinstance(document, dict) else ():
            if isinstance(document.get(key), str | int | float):
                yield f"{SERVER_FACT}{key}", _text(document[key])
