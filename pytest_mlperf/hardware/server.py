"""Determine a server's hardware from the answers of probe, exporter, kubectl and server.

Answers are untrusted: the reader limits their size; this module checks their content.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from pytest_mlperf.core.baseline import SERVER_FACT, Property
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.prometheus import page_samples
from pytest_mlperf.core.server.identity import SOURCE, SOURCES, ServerIdentity
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware import probe
from pytest_mlperf.hardware.machine import common, split
from pytest_mlperf.hardware.nvidia import instance_class
from pytest_mlperf.hardware.specs import class_of, find_gpu

MAX_TEXT = 200
"""Longest text of a property; longer ones are cut."""

USED_GIB = 1.0
"""Memory in use of a GPU that holds a model."""

EXPORTER_METRICS = {
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "amd_gpu_energy_consumed",
    "amd_gpu_package_power",
    "gpu_energy_consumed",
    "gpu_package_power",
}
"""Metrics of DCGM's exporter, and of AMD's, whose labels name the GPUs."""

LABELS = {
    "uuid": ("UUID", "serial_number"),
    "gpu": ("modelName", "card_model"),
    "host": ("Hostname", "hostname"),
}
"""Labels of these metrics, DCGM's and AMD's."""

PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-accelerator",
)
NODE_LABELS = ("nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/mig.config")
DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"
RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
"""Labels of Kubernetes nodes, and resources of containers, that tell a server's accelerators."""

START_METRIC = "process_start_time_seconds"

PAGES = ("/version", "/metrics", "/info", "/props", "/server_info", "/v1/manifest")
"""Pages on which vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and NIM describe themselves."""

SOFTWARE = {
    "version": ("version", "build_info", "sha"),
    "quantization": ("quantization", "model_dtype"),
    "parallel": ("tp_size", "pp_size", "dp_size", "ep_size", "num_shard"),
    "flags": ("chunked_prefill_size", "max_total_tokens", "mem_fraction_static", "total_slots"),
}
"""Keys of these pages that describe the software, by fact."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hold what one source reports about a server's hardware.

    Attributes:
        kind: Accelerator class; "" if the product is unknown.
        facts: Versions and the like, outside the identity.
        notes, idle, joules: As in `ServerIdentity`.
    """

    properties: Mapping[str, Property]
    kind: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    idle: str = ""
    joules: Mapping[str, float] = field(default_factory=dict)

    @property
    def in_words(self) -> str:
        """Number and product: "8 x NVIDIA H200"."""
        count, name = self.properties.get("gpus"), self.properties.get("gpu")
        return f"{count or 1} x {name}" if name else str(self.properties.get("cpu", "no GPU"))


def identified(
    url: str,
    accelerator: str,
    reports: Mapping[str, Hardware],
    pages: Mapping[str, bytes],
    headers: Mapping[str, str],
    starts: Collection[float],
    *,
    time_s: float,
) -> ServerIdentity:
    """Return the identity of the server at a url by its most trusted source.

    Args:
        accelerator: Accelerator that the suite declares for the server; "cpu" declares none.
        reports: Hardware by source: probe, exporter, kubernetes.
        pages: Content of those of `PAGES` that the server has, by path.
        headers: Response headers of these pages, by name in lower case.
        starts: Start times on the metrics page, of several connections.
        time_s: Time of the answers, monotonic [s].

    Raises:
        RunError: Two sources contradict each other.
    """
    own = of_server(pages, headers)
    reports = {**reports, **({"server": own} if own else {})}
    _require_agreement(reports, accelerator)
    declared = {} if accelerator == "cpu" else {"declared": accelerator}
    source = next(name for name in SOURCES if name in {*reports, *declared, "unknown"})
    best = reports.get(source) or Hardware(properties={"hardware": declared.get(source)})
    texts = {name: reports[name].in_words for name in SOURCES if name in reports} | declared
    several = f"{len(starts)} servers or more answer at this url: a load balancer"
    return ServerIdentity(
        properties={
            SOURCE: source,
            **({} if source in SOURCES[:3] else {"url": place_of(url)}),
            **best.properties,
        },
        surroundings={
            "server.hardware": texts.get(source, "unknown"),
            "server.sources": "; ".join(f"{name}: {text}" for name, text in texts.items()),
            **{f"server.{name}": text for name, text in best.facts.items() if text},
        },
        facts=dict(_software(pages, headers)),
        notes=(*best.notes, *([several] if len(starts) > 1 else [])),
        idle=best.idle,
        joules=best.joules,
        time_s=time_s,
    )


def place_of(url: str) -> str:
    """Return host, port and path of a url: "gpu-box:8000/v1"."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _require_agreement(reports: Mapping[str, Hardware], accelerator: str) -> None:
    kinds = {name: one.kind for name, one in reports.items() if one.kind}
    if accelerator != "cpu":
        kinds["the suite"] = split(accelerator)[1]
    if len({re.sub(r"_(\d\w*g\..*|mig)$", "", kind) for kind in kinds.values()}) > 1:
        texts = ", ".join(f"{name} says {kind}" for name, kind in kinds.items())
        raise _fault(
            f"the sources of the server's hardware disagree: {texts}; correct accelerators, or ask "
            "the machine on which the server runs"
        )


def _fault(text: str) -> RunError:
    return RunError("server", text)


def _document(answer: bytes, source: str) -> Any:
    try:
        return parse_json(answer)
    except (ValueError, UnicodeDecodeError):
        shown = broken(answer[:MAX_TEXT].decode("utf-8", "replace").strip())
        raise _fault(f"{source} printed {shown or 'nothing'!r}, which is not JSON") from None


def _property(value: Any) -> Property:
    if isinstance(value, str):
        return broken(value)[:MAX_TEXT]
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if value is None or is_number else str(value)[:MAX_TEXT]


def of_probe(answer: bytes, accelerator: str, url: str) -> Hardware:
    """Return the hardware that a probe reports; raise RunError if it lacks the accelerator."""
    report = _document(answer, "the probe")
    try:
        if report["kind"] != probe.KIND or report["schema"] != probe.SCHEMA:
            raise TypeError
        gpus = list(_units(report["gpus"]))
        node = {"node": _property(report["node"])}
        host = {name: _property(report[name]) for name in ("cpu", "cores")}
        facts = {name: str(_property(text)) for name, text in report["facts"].items()}
        ports, trouble = [int(port) for port in report["ports"]], report["trouble"]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _fault(
            "the probe printed JSON that is not of pytest-mlperf machine --json: use the same "
            "version there, or a Python that reads the file from stdin (python3 -)"
        ) from None
    (count, kind), port = split(accelerator), urlsplit(url if "://" in url else f"//{url}").port
    used = gpus if kind == "cpu" else [gpu for gpu in gpus if _fits(gpu, kind)][:count]
    if kind != "cpu" and len(used) < count:
        names = ", ".join(str(gpu["identity"]["gpu"]) for gpu in gpus) or trouble or "no GPU"
        raise _fault(
            f"the suite says {accelerator}, and the probe reports {broken(str(names))[:MAX_TEXT]}: "
            "correct accelerators, or ask the machine on which the server runs"
        )
    if not used:
        return Hardware(properties={**host, **node}, facts=facts)
    names = dict.fromkeys(name for gpu in used for name in gpu["identity"])
    identity = {name: common([gpu["identity"].get(name) for gpu in used]) for name in names}
    if len(gpus) > 1:
        identity["topology"] = _property(report.get("topology"))
    if len(gpus) > len(used):
        identity["node_gpus"] = len(gpus)
    free = [gpu for gpu in used if (gpu["memory_used_gib"] or math.inf) < USED_GIB]
    idle = (
        f"the suite says {accelerator}, and {len(free)} of these GPUs hold no model: the server "
        "uses fewer; correct accelerators"
    )
    closed = f"the probe's machine does not listen on port {port}: it may be another one"
    return Hardware(
        properties={"gpus": len(used), **identity, **node},
        kind=used[0]["kind"] if used[0]["known"] else "",
        facts=facts,
        notes=(closed,) if port and ports and port not in ports and not _is_loopback(url) else (),
        idle=idle if free and kind != "cpu" else "",
    )


def _fits(gpu: Mapping[str, Any], kind: str) -> bool:
    """Return whether a GPU may be the suite's accelerator, by class or by words of its name."""
    name = str(gpu["identity"]["gpu"])
    if gpu["kind"] == kind or name.startswith("0x"):
        return True
    return not gpu["known"] and set(kind.split("_")) <= set(re.findall(r"[A-Za-z0-9]+", name))


def _is_loopback(url: str) -> bool:
    return bool(re.match(r"(localhost|127\.|\[?::1)", place_of(url)))


def _units(gpus: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield GPUs with their accelerator class; a GPU with MIG as its instances."""
    for gpu in gpus:
        identity = {name: _property(value) for name, value in gpu["identity"].items()}
        mig, used = identity.get("mig"), gpu.get("memory_used_gib")
        for profile in mig.split(", ") if isinstance(mig, str) else [mig]:
            name = str(identity.get("gpu"))
            yield {
                "identity": {**identity, "mig": profile} if profile else identity,
                "kind": instance_class(name, profile) if profile else class_of(name),
                "known": bool(known_class(name)),
                "memory_used_gib": used if isinstance(used, int | float) and not profile else None,
            }


def of_exporter(page: bytes, chosen: Sequence[str], accelerator: str) -> Hardware:
    """Return the GPUs of an exporter's page; raise RunError if it shows none or too few."""
    gpus: dict[str, dict[str, str]] = {}
    joules: dict[str, float] = {}
    limits: dict[str, float] = {}
    for sample in page_samples(page, EXPORTER_METRICS):
        labels = sample.labels
        values = {
            name: next((labels[one] for one in ones if labels.get(one)), "")
            for name, ones in LABELS.items()
        }
        uuid = values["uuid"]
        if not uuid or (chosen and not {uuid, values["host"]}.intersection(chosen)):
            continue
        gpus[uuid] = {**values, "driver": labels.get("DCGM_FI_DRIVER_VERSION", "")}
        if "energy" in sample.name.lower():
            joules[uuid] = max(sample.value, joules.get(uuid, 0.0))
        if sample.name.endswith("LIMIT"):
            limits[uuid] = sample.value
    count, kind = split(accelerator)
    if not gpus or (kind != "cpu" and len(gpus) < count):
        raise _fault(
            f"the exporter shows {len(gpus)} GPUs, and the suite says {accelerator}: name the "
            "exporter of the machine on which the server runs"
        )
    names = common([_property(gpu["gpu"]) for gpu in gpus.values()])
    watts = [round(limits[uuid] / 5) * 5 if uuid in limits else None for uuid in gpus]
    return Hardware(
        properties={
            "gpus": len(gpus),
            "gpu": names,
            "power_limit_w": common(watts),
            "node": probe.hashed("".join(sorted(map(probe.hashed, gpus)))),
        },
        kind=known_class(next(iter(gpus.values()))["gpu"]),
        facts={"driver": ", ".join(sorted({gpu["driver"] for gpu in gpus.values()}))},
        joules=joules,
    )


def counts_of(pods: bytes) -> dict[str, int]:
    """Return the number of accelerators that pods request, by node name."""
    by_node: dict[str, int] = {}
    try:
        for pod in _items(_document(pods, "kubectl get pods")):
            limits = [
                one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]
            ]
            count = sum(int(own.get(name, 0)) for own in limits for name in RESOURCES)
            name = str(pod["spec"]["nodeName"])
            by_node[name] = by_node.get(name, 0) + count
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _fault("kubectl get pods printed JSON that does not describe running pods") from None
    return by_node


def of_kubernetes(pods: bytes, nodes: bytes) -> Hardware:
    """Return the accelerators of pods by the labels of their nodes; raise RunError if unknown."""
    by_node = counts_of(pods)
    try:
        labels = {
            node["metadata"]["name"]: node["metadata"]["labels"]
            for node in _items(_document(nodes, "kubectl get nodes"))
            if node["metadata"]["name"] in by_node
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _fault("kubectl get nodes printed JSON that does not describe nodes") from None
    products = {
        name: next((str(own[label]) for label in PRODUCT_LABELS if label in own), None)
        for name, own in labels.items()
    }
    if not by_node or None in products.values() or labels.keys() != by_node.keys():
        lacking = ", ".join(sorted(n for n in by_node if not products.get(n))) or "no pod"
        raise _fault(
            f"kubectl shows no accelerator of {broken(lacking)[:MAX_TEXT]}: check namespace and "
            f"selector, and that nodes have the label {PRODUCT_LABELS[0]}"
        )
    kinds = {known_class(str(product)) for product in products.values()}
    several = f"the server's nodes are unequal: {', '.join(sorted(map(str, products.values())))}"
    return Hardware(
        properties={
            "gpus": sum(by_node.values()) or None,
            "gpu": common([_property(product) for product in products.values()]),
            **{
                label.rpartition(".")[2]: common([_property(o.get(label)) for o in labels.values()])
                for label in NODE_LABELS
            },
            "node": probe.hashed(" ".join(sorted(by_node))),
        },
        kind=kinds.pop() if len(kinds) == 1 else "",
        facts={"driver": str(common([o.get(DRIVER_LABEL, "") for o in labels.values()]))},
        notes=(several,) if len(set(products.values())) > 1 else (),
    )


@cache
def known_class(product: str) -> str:
    """Return the class of a product of the table of GPUs; "" if it is not there."""
    gpu = find_gpu(product.replace("-", " ").upper())
    return gpu.accelerator if gpu else ""


def _items(document: Any) -> list[Any]:
    return list(document["items"]) if "items" in document else [document]


def of_server(pages: Mapping[str, bytes], headers: Mapping[str, str]) -> Hardware | None:
    """Return the hardware that a server itself reports: TGI's header, NIM's manifest; or None."""
    match = re.fullmatch(r"(?:(\d+)-)?(\D.*)", headers.get("x-compute-type", ""))
    name = match[2].upper() if match and not match[2].startswith(("cpu", "gpu")) else ""
    count = int(match[1] or 1) if match else None
    tags = json.dumps(_json(pages.get("/v1/manifest", b"")))
    if devices := set(re.findall(r'"gpu": "([^"]{1,60})"', tags)):
        name, count = ", ".join(sorted(devices)), None
    if not name:
        return None
    return Hardware(properties={"gpu": _property(name), "gpus": count})


def _json(page: bytes) -> Any:
    try:
        return parse_json(page)
    except (ValueError, UnicodeDecodeError):
        return None


def _software(pages: Mapping[str, bytes], headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield facts on the server's software; "pages" identifies the kind of server."""
    known = [path for path in PAGES if path in pages]
    yield f"{SERVER_FACT}pages", " ".join((broken(headers.get("server", "")), *known))[:MAX_TEXT]
    documents = [own for path in known if isinstance(own := _json(pages[path]), dict)]
    for fact, keys in SOFTWARE.items():
        values = {
            key: _property(own[key])
            for own in documents
            for key in keys
            if isinstance(own.get(key), str | int | float)
        }
        if values:
            yield (
                f"{SERVER_FACT}{fact}",
                ", ".join(f"{key} {value}" for key, value in values.items()),
            )
