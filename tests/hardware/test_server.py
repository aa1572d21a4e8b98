"""A change of the hardware behind one url is said, whatever source reports it; no change is quiet.

The answers of the sources are simulated: those of a probe, a DCGM exporter, kubectl and the server.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.baseline import changed_keys, differences
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.server.identity import ServerIdentity, identity_reasons
from pytest_mlperf.hardware import probe
from pytest_mlperf.hardware.probe import hashed
from pytest_mlperf.hardware.server import (
    identified,
    identify_by_exporter,
    of_kubernetes,
    parse_probe,
)
from pytest_mlperf.reports.sentences import sentence

URL = "http://gpu-box:8000/v1"
PODS = "serving/app=vllm"
SOURCES = ("probe", "exporter", "kubernetes", "server", "declared")
SOFTWARE = ("sglang", "llama.cpp", "tgi")


def kubectl(pods: bytes, nodes: bytes) -> Callable[..., bytes]:
    return lambda kind, *_: {"pods": pods, "nodes": nodes}[kind]


@dataclass(frozen=True, kw_only=True)
class World:
    """What is behind the url; `moment` moves what changes from look to look."""

    product: str = "NVIDIA H200"
    count: int = 8
    power_limit_w: int = 700
    ecc: bool = True
    clocks: int | str = "free"
    node: str = "box-1"
    version: str = "0.11.0"
    parallel: int = 8
    software: str = "vllm"
    driver: str = "580.95.05"
    moment: float = 0.0
    loaded: int = field(default=8)

    def uuid(self, number: int) -> str:
        return f"GPU-{self.node}-{self.product}-{number}"

    @property
    def probe(self) -> bytes:
        identity = {
            "gpu": self.product,
            "memory_gib": 140,
            "pci_id": "2335:16c1",
            "mig": False,
            "power_limit_w": self.power_limit_w,
            "ecc": self.ecc,
            "clocks": self.clocks,
            "virtualization": "none",
        }
        gpus = [
            {
                "uuid": hashed(self.uuid(n)),
                "gpu": self.product,
                "watts": 300 + self.moment % 90,
                "joules": 1e6 + self.moment * 300,
                "memory_used_gib": (120.0 if n < self.loaded else 0.3) + self.moment % 0.5,
                "identity": identity,
            }
            for n in range(self.count)
        ]
        return json.dumps(
            {
                "kind": probe.KIND,
                "schema": probe.SCHEMA,
                "node": hashed("".join(sorted(str(gpu["uuid"]) for gpu in gpus))),
                "cpu": "AMD EPYC 9654",
                "cores": 192,
                "gpus": gpus,
                "topology": "NV18 NVSwitch",
                "facts": {"kernel": "6.8", "driver": self.driver},
                "ports": [22, 8000],
                "trouble": None,
            }
        ).encode()

    @property
    def exporter(self) -> bytes:
        rows = [
            f'{name}{{gpu="{n}",UUID="{self.uuid(n)}",modelName="{self.product}",'
            f'Hostname="{self.node}",DCGM_FI_DRIVER_VERSION="{self.driver}"}} {value}'
            for n in range(self.count)
            for name, value in (
                ("DCGM_FI_DEV_POWER_MGMT_LIMIT", self.power_limit_w),
                ("DCGM_FI_DEV_POWER_USAGE", 300 + self.moment % 90),
                ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e9 + 3e5 * self.moment),
            )
        ]
        return "\n".join(rows).encode()

    @property
    def pods(self) -> bytes:
        container = {"resources": {"limits": {"nvidia.com/gpu": str(self.count)}}}
        return json.dumps(
            {"items": [{"spec": {"nodeName": self.node, "containers": [container, {}]}}]}
        ).encode()

    @property
    def nodes(self) -> bytes:
        labels = {
            "nvidia.com/gpu.product": self.product.replace(" ", "-"),
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.memory": "143771",
            "nvidia.com/cuda.driver-version.full": self.driver,
        }
        status = {"heartbeat": self.moment}
        return json.dumps(
            {"items": [{"metadata": {"name": self.node, "labels": labels}, "status": status}]}
        ).encode()

    @property
    def pages(self) -> dict[str, bytes]:
        start = b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7e9\n"
        version = json.dumps({"version": self.version}).encode()
        if self.software == "vllm":
            return {"/version": version, "/metrics": start}
        described = {
            "sglang": ("/server_info", {"version": self.version, "tp_size": self.parallel}),
            "llama.cpp": ("/props", {"build_info": self.version, "total_slots": self.parallel}),
            "tgi": ("/info", {"version": self.version, "num_shard": self.parallel}),
        }
        path, document = described[self.software]
        return {path: json.dumps({**document, "uptime": self.moment}).encode()}

    def seen_by(self, source: str, url: str = URL) -> ServerIdentity:
        """Return the identity by one source besides the server's own pages."""
        accelerator = "cpu" if source == "server" else "8xH200"
        reports = {
            "probe": lambda: parse_probe(self.probe, accelerator, url),
            "exporter": lambda: identify_by_exporter(self.exporter, (), accelerator),
            "kubernetes": lambda: of_kubernetes(kubectl(self.pods, self.nodes), PODS, accelerator),
        }
        report = {source: reports[source]()} if source in reports else {}
        headers = {"server": "uvicorn"}
        if source == "server":
            headers["x-compute-type"] = f"{self.count}-{self.product.lower().replace(' ', '-')}"
        return identified(
            url, accelerator, report, self.pages, headers, frozenset(), time_s=self.moment
        )


SWAPS: Mapping[str, tuple[tuple[str, ...], Callable[[random.Random], Mapping[str, Any]]]] = {
    "kind": (
        ("probe", "exporter", "kubernetes", "server"),
        lambda r: {"product": r.choice(["NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA A40"])},
    ),
    "count": (
        ("probe", "exporter", "kubernetes", "server"),
        lambda r: {"count": (n := r.choice([1, 2, 4, 9, 16])), "loaded": n},
    ),
    "power cap": (("probe", "exporter"), lambda r: {"power_limit_w": r.randrange(200, 690, 5)}),
    "node": (
        ("probe", "exporter", "kubernetes"),
        lambda r: {"node": f"box-{r.randrange(2, 999)}"},
    ),
    "ECC": (("probe",), lambda _: {"ecc": False}),
    "clocks": (("probe",), lambda r: {"clocks": r.randrange(600, 1900)}),
    "GPUs in use": (("probe",), lambda r: {"loaded": r.randrange(1, 8)}),
    "version": (SOURCES, lambda r: {"version": f"0.12.{r.randrange(99)}"}),
    "software": (SOURCES, lambda r: {"software": r.choice(SOFTWARE)}),
    "flags": (SOURCES, lambda r: {"software": "sglang", "parallel": r.choice([1, 2, 4])}),
    "driver": (("probe", "exporter", "kubernetes"), lambda r: {"driver": f"59{r.randrange(9)}.1"}),
}
"""By kind of swap: the sources that notice it, and the changed world; as in docs/openai.md."""


def texts_of(recorded: World, present: World, source: str) -> list[str]:
    """Return the texts of a session on `present` that has a baseline of `recorded`."""
    baseline = recorded.seen_by(source)
    try:
        current = present.seen_by(source)
    except RunError as error:
        return [str(error)]
    return [
        *(f"identity: {one.name}" for one in differences(baseline.properties, current.properties)),
        *(f"changed: {key}" for key in changed_keys(baseline.facts, current.facts)),
        *(f"changed: {key}" for key in changed_keys(baseline.surroundings, current.surroundings)),
        *map(sentence, identity_reasons(baseline, current)),
        *(
            text
            for text in map(sentence, current.remarks)
            if "not verified" in text or "unknown" in text
        ),
    ]


def test_none_of_300_swaps_passes_untexts_of() -> None:
    """Each by the sources of its row; an unverified source says that it could not see one."""
    draw = random.Random(50)
    swaps = [(name, draw.choice(SWAPS[name][0])) for name in draw.choices(list(SWAPS), k=300)]
    quiet, unseen = [], []
    for name, source in swaps:
        recorded = World(moment=draw.uniform(0, 1e4))
        present = replace(recorded, moment=draw.uniform(0, 1e4), **SWAPS[name][1](draw))
        texts = texts_of(recorded, present, source)
        if not texts:
            quiet.append((name, source))
        if all("look like" in text for text in texts):
            unseen.append((name, source))

    assert quiet == []
    assert unseen == []
    assert {name for name, _ in swaps} == SWAPS.keys()
    assert {source for _, source in swaps} == set(SOURCES)


def test_the_probe_notices_every_swap_and_others_say_what_they_cannot_see() -> None:
    draw = random.Random(1)
    for name, (sources, swap) in SWAPS.items():
        assert "probe" in sources
        present = replace(World(), **swap(draw))
        assert texts_of(World(), present, "probe"), name
        assert texts_of(World(), present, "declared"), name  # at least that nothing is verified


def test_1000_unchanged_sessions_raise_no_alarm() -> None:
    draw = random.Random(2)
    alarms = []
    for number in range(1000):
        source = SOURCES[number % 4]
        recorded = World(moment=draw.uniform(0, 1e6), software=draw.choice(["vllm", *SOFTWARE]))
        present = replace(recorded, moment=recorded.moment + draw.uniform(1, 1e5))
        if texts := [
            text for text in texts_of(recorded, present, source) if "look like" not in text
        ]:
            alarms.append((source, texts))

    assert alarms == []


def test_the_most_trusted_source_is_the_identity_and_all_are_recorded() -> None:
    world = World()
    reports = {
        "exporter": identify_by_exporter(world.exporter, (), "8xH200"),
        "probe": parse_probe(world.probe, "8xH200", URL),
    }
    both = identified(URL, "8xH200", reports, {}, {}, frozenset({1.0}), time_s=0.0)

    assert both.properties == world.seen_by("probe").properties
    assert both.surroundings["server.sources"] == (
        "probe: 8 x NVIDIA H200; exporter: 8 x NVIDIA H200; declared: 8xH200"
    )
    assert both.in_words == "8 x NVIDIA H200 (probe)"
    assert both.remarks == ()


def test_unverified_hardware_keeps_the_url_in_its_key_and_is_said_in_each_verdict() -> None:
    declared, unknown = (
        identified("http://u:p@box:8000/llm/v1/", name, {}, {}, {}, frozenset(), time_s=0.0)
        for name in ("8xH200", "cpu")
    )
    assert declared.properties == {
        "server": "declared",
        "url": "box:8000/llm/v1",
        "hardware": "8xH200",
    }
    assert unknown.properties == {"server": "unknown", "url": "box:8000/llm/v1", "hardware": None}
    assert declared.remarks == (Note.of("hardware_declared", hardware="8xH200"),)
    assert unknown.remarks == (Note.of("hardware_unknown", hardware=None),)


def with_(report: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(report), **changes}).encode()


def of_pods(pods: bytes, nodes: bytes) -> object:
    return of_kubernetes(kubectl(pods, nodes), PODS, "cpu")


SMALL = World(count=4, loaded=4)
NONSENSE: list[tuple[Callable[[], object], str]] = [
    (lambda: parse_probe(b"", "8xH200", URL), "printed 'nothing', which is not JSON"),
    (lambda: parse_probe(b"{" * 9999, "8xH200", URL), "which is not JSON"),
    (lambda: parse_probe(b'{"gpus": 1}', "8xH200", URL), "not of pytest-mlperf machine --json"),
    (lambda: parse_probe(with_(World().probe, schema=9), "8xH200", URL), "use the same version"),
    (lambda: parse_probe(with_(World().probe, gpus=[[]]), "8xH200", URL), "not of pytest-mlperf"),
    (
        lambda: parse_probe(SMALL.probe, "8xH200", URL),
        "says 8xH200, and the probe reports 4xH200",
    ),
    (
        lambda: parse_probe(with_(SMALL.probe, gpus=[], trouble="no driver"), "H200", URL),
        "the probe reports: no driver",
    ),
    (lambda: identify_by_exporter(b"", (), "H200"), "lists no GPU: correct its URL"),
    (
        lambda: identify_by_exporter(World().exporter, ("GPU-x",), "cpu"),
        "lists none of gpus =",
    ),
    (
        lambda: identify_by_exporter(SMALL.exporter, (), "8xH200"),
        "says 8xH200, and the exporter reports 4xH200",
    ),
    (lambda: of_pods(b'{"items": [{}]}', b""), "no accelerator of running pods"),
    (lambda: of_pods(b'{"items": []}', b""), "shows no pod"),
    (lambda: of_pods(World().pods, b'{"items": []}'), "no accelerator of box-1"),
    (lambda: of_pods(World().pods, b"null"), "no accelerator of box-1"),
    (lambda: of_pods(b"error: no", b""), "kubectl get pods printed 'error: no', which is not JSON"),
]


@pytest.mark.parametrize(("ask", "text"), NONSENSE)
def test_nonsense_is_one_error_of_layer_server(ask: Callable[[], object], text: str) -> None:
    with pytest.raises(RunError) as caught:
        ask()
    assert text in str(caught.value)
    assert caught.value.layer == "server"
    assert len(str(caught.value)) < 500


H200 = {"gpu": "NVIDIA H200"}
WRONG: list[Any] = [-1, math.nan, 10**400, [{}]]


@pytest.mark.parametrize(
    "gpu",
    [
        *({"memory_used_gib": wrong} for wrong in [*WRONG, "much"]),
        *({"identity": wrong} for wrong in [{}, *WRONG]),
        *({"identity": {**H200, "memory_gib": wrong}} for wrong in WRONG),
    ],
)
def test_a_probe_with_impossible_figures_of_a_gpu_is_one_error(gpu: dict[str, Any]) -> None:
    (first, *others) = json.loads(World().probe)["gpus"]
    report = with_(World().probe, gpus=[{**first, **gpu}, *others])
    with pytest.raises(RunError, match="the probe printed JSON that is not of pytest-mlperf"):
        parse_probe(report, "8xH200", URL)


@pytest.mark.parametrize("key", ["trouble", "facts", "cpu", "cores", "node", "ports"])
def test_a_probe_with_an_impossible_value_or_without_it_is_one_error(key: str) -> None:
    report = json.loads(World().probe)
    for wrong in WRONG:
        with pytest.raises(RunError, match=f"not of pytest-mlperf machine --json .{key}"):
            parse_probe(with_(World().probe, **{key: wrong}), "8xH200", URL)
    del report[key]
    with pytest.raises(RunError, match=f"not of pytest-mlperf machine --json .{key}"):
        parse_probe(json.dumps(report).encode(), "8xH200", URL)


@pytest.mark.parametrize("accelerator", ["cpu", "8xH200"])
def test_more_gpus_than_any_server_has_are_one_error(accelerator: str) -> None:
    many = World(count=5000)
    endless = World(count=10**15)
    asks: list[Callable[[], object]] = [
        lambda: parse_probe(many.probe, accelerator, URL),
        lambda: identify_by_exporter(many.exporter, (), accelerator),
        lambda: of_kubernetes(kubectl(endless.pods, endless.nodes), PODS, accelerator),
    ]
    for ask in asks:
        with pytest.raises(RunError, match="reports more than 4,096 GPUs"):
            ask()


@pytest.mark.parametrize("accelerator", ["cpu", "2xMI300X"])
def test_an_exporter_without_names_of_models_is_the_suites_accelerator(accelerator: str) -> None:
    page = "".join(f'gpu_package_power{{serial_number="{n}"}} 748\n' for n in range(2))
    report = identify_by_exporter(page.encode(), (), accelerator)
    assert (report.properties["gpus"], report.properties["gpu"]) == (2, None)
    assert report.surroundings["server.hardware"] == "2 x GPU"


def test_sources_that_contradict_each_other_are_an_error_with_both_values() -> None:
    other = World(product="NVIDIA B200")
    reports = {
        "probe": parse_probe(World().probe, "cpu", URL),
        "exporter": identify_by_exporter(other.exporter, (), "cpu"),
    }
    with pytest.raises(
        RunError, match="differently: probe says 8 x NVIDIA H200, exporter says 8 x NVIDIA B200"
    ):
        identified(URL, "cpu", reports, {}, {}, frozenset(), time_s=0.0)
    with pytest.raises(RunError, match="the suite says 8xH200, and the exporter reports 8xB200"):
        other.seen_by("exporter")


def test_unequal_nodes_and_several_servers_behind_one_url_are_texts_of() -> None:
    pods = [json.loads(w.pods)["items"][0] for w in (World(), World(node="box-2"))]
    other = World(node="box-2", product="NVIDIA H100 80GB HBM3")
    nodes = [json.loads(w.nodes)["items"][0] for w in (World(), other)]
    texts = [json.dumps({"items": items}).encode() for items in (pods, nodes)]
    mixed = of_kubernetes(kubectl(*texts), PODS, "8xH200")
    assert mixed.properties["gpu"] == "NVIDIA H200"
    assert mixed.properties["node_gpus"] == "8xH200, 8xH100"
    assert "nodes are unequal" in mixed.notes[0]
    named = replace(mixed, properties={"server": "kubernetes"}, notes=("{product}",))
    assert named.remarks == ("{product}",)

    several = identified(URL, "cpu", {}, {}, {}, frozenset({1.0, 2.0}), time_s=0.0)
    assert any("at least 2 processes answer" in sentence(note) for note in several.remarks)


def test_a_stale_exporter_and_gpus_without_a_model_make_runs_invalid() -> None:
    early, late = World(moment=1.0).seen_by("exporter"), World(moment=1.0).seen_by("exporter")
    (note,) = identity_reasons(early, replace(late, time_s=early.time_s + 61))
    assert note == Note.of("exporter_stale", seconds=61.0)
    assert list(identity_reasons(early, replace(late, time_s=early.time_s + 59))) == []
    (text,) = identity_reasons(World().seen_by("probe"), World(loaded=4).seen_by("probe"))
    assert "8xH200, but only 4 GPUs hold a model" in sentence(text)
    (note,) = identity_reasons(World().seen_by("probe"), World(node="box-2").seen_by("probe"))
    assert isinstance(note, Note)
    assert note.key == "server_hardware_changed"
    assert sentence(note).count("node was") == 1


def test_a_probe_of_a_machine_that_does_not_listen_on_the_port_is_doubted() -> None:
    (note,) = World().seen_by("probe", "http://gpu-box:9000").remarks
    assert "does not listen on port 9000" in sentence(note)
    assert World().seen_by("probe", "http://127.0.0.1:9000").remarks == ()


def test_accelerators_without_nvml_are_read_from_sysfs(tmp_path: Path) -> None:
    """AMD's GPUs with memory of their own, and any processing accelerator; no display."""
    devices = {
        "0000:01:00.0": {
            "vendor": "0x1002",
            "class": "0x038000",
            "device": "0x74a1",
            "subsystem_device": "0x74a1",
            "product_name": "AMD Instinct MI300X OAM",
            "unique_id": "a1b2",
            "mem_info_vram_total": str(192 * 2**30),
            "mem_info_vram_used": str(100 * 2**30),
            "current_compute_partition": "SPX",
            "hwmon/hwmon3/power1_cap": "750000000",
            "hwmon/hwmon3/power1_input": "412000000",
        },
        "0000:02:00.0": {"vendor": "0x1da3", "class": "0x120000", "device": "0x1020"},
        "0000:03:00.0": {"vendor": "0x1002", "class": "0x030000", "device": "0x164e"},
        "0000:04:00.0": {"vendor": "0x10de", "class": "0x030200", "device": "0x2335"},
    }
    for name, files in devices.items():
        for file, text in files.items():
            path = tmp_path / "sys/bus/pci/devices" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    amd, gaudi = probe.other_accelerators(tmp_path)
    assert amd["identity"] == {
        "gpu": "AMD Instinct MI300X OAM",
        "memory_gib": 192,
        "pci_id": "74a1:74a1",
        "partition": "SPX",
        "power_limit_w": 750,
    }
    assert (amd["watts"], amd["memory_used_gib"]) == (412.0, 100.0)
    assert gaudi["identity"]["gpu"] == "0x1da3 1020:"
    assert (gaudi["watts"], gaudi["memory_used_gib"]) == (None, None)


def test_mig_instances_and_other_vendors_are_accelerators_too() -> None:
    report = json.loads(World(count=1).probe)
    report["gpus"][0]["identity"] |= {"mig": "1g.18gb", "gpu": "NVIDIA H200 MIG 1g.18gb"}
    two = parse_probe(json.dumps(report).encode(), "H200_1g.18gb", URL)
    assert two.properties["mig"] == "1g.18gb"
    report["gpus"][0]["identity"] = {"gpu": "AMD Instinct MI300X OAM", "power_limit_w": 750}
    amd = parse_probe(json.dumps(report).encode(), "MI300X", URL)
    assert amd.properties["gpu"] == "AMD Instinct MI300X OAM"
    # sysfs has no product name of these: the suite's is taken.
    report["gpus"] = report["gpus"] * 8
    report["gpus"][0]["identity"] = {"gpu": "0x1da3 1020:1020", "pci_id": "1020:1020"}
    gaudi = parse_probe(json.dumps(report).encode(), "8xGaudi3", URL)
    assert (gaudi.properties["gpus"], gaudi.properties["pci_id"]) == (8, "1020:1020")
    page = (
        'gpu_package_power{gpu_id="0",card_model="Instinct MI300X",serial_number="S",'
        'hostname="n"} 748\n'
    )
    assert identify_by_exporter(page.encode(), (), "MI300X").properties["gpu"] == "Instinct MI300X"


def test_a_manifest_of_several_profiles_does_not_name_the_gpu() -> None:
    """NIM lists all GPUs for which it has a profile."""
    profiles = [{"tags": {"gpu": name, "tp": "1"}} for name in ("H100", "L40S")]
    for count, source in ((1, "server"), (2, "unknown")):
        page = json.dumps({"profiles": profiles[:count]}).encode()
        identity = identified(URL, "cpu", {}, {"/v1/manifest": page}, {}, (), time_s=0.0)
        assert identity.properties["server"] == source
