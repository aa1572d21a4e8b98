"""Which machine this is, and what its driver answers to whom."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from typing import Any

from benchmarks.gpu.board import Watch, watch
from benchmarks.gpu.setting import Answer, Part, Setting, Table, show

LIBRARIES = ("torch", "transformers", "diffusers", "nvidia-ml-py", "mlcommons-loadgen", "numpy")
STATES = ("name",)
"""Of the identity: what is in the table already."""

POWER_FIELD = 186
LOOKS = 200


def versions() -> dict[str, str]:
    """Return versions of Python and of libraries that are installed."""
    found = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def part(setting: Setting) -> Part:
    """Identity, versions, probes with their cost, fields of violations, processes."""
    answer = Answer()
    held = _hold_the_gpu(setting)
    with watch(setting, watch_s=1.5, more=("proc 4242 1000000000",)) as seen:
        time.sleep(2.0 if not setting.simulated else 0.5)
    del held
    ready, facts = seen.ready, seen.facts
    answer.values |= {
        "driver": ready["driver"],
        "cuda_driver": ready["cuda"],
        "versions": versions(),
        "root": os.geteuid() == 0,
        "identity": facts["identity"],
        "ways": facts["ways"],
        "unavailable": dict(seen.log.missing),
        "cost_us": facts["cost_us"],
        "rates": ready["rates"],
        "counter_period_s": facts["counter_period_s"],
        "sampler_cpu_share": seen.cpu_share,
        "sampler_ticks": seen.ticks,
    }
    answer.tables += [_identity(setting, seen), _probes(facts, seen.log.missing)]
    yield answer
    answer.tables.append(_questions(setting, seen, answer.values))
    yield answer


def _hold_the_gpu(setting: Setting) -> Any:
    """Have a process of ours on the GPU, so that its list of processes can be looked at."""
    if setting.device == "cpu":
        return None
    import torch

    return torch.zeros(1 << 20, device=setting.device)


def _identity(setting: Setting, seen: Watch) -> Table:
    ready, known = seen.ready, seen.facts["identity"]
    table = Table(title="Identity and versions", columns=("property", "value"))
    rows: dict[str, Any] = {"GPU": setting.product, "class": setting.accelerator}
    rows |= {
        name: f"{value:#010x}" if name.startswith("pci_") else value
        for name, value in known.items()
        if value is not None and name not in STATES
    }
    rows |= {"driver": ready["driver"], "CUDA of the driver": ready["cuda"]}
    rows |= {"CUDA of torch": _torch_cuda(setting), **versions()}
    rows["user"] = "root" if os.geteuid() == 0 else "not root"
    table.rows = [(str(name), str(value)) for name, value in rows.items()]
    return table


def _torch_cuda(setting: Setting) -> str:
    if setting.device == "cpu":
        return "not used"
    import torch

    return str(torch.version.cuda)


def _probes(facts: Mapping[str, Any], missing: Mapping[str, str]) -> Table:
    table = Table(
        title="Cost of each probe, µs of 20 reads",
        columns=("quantity", "answered by", "median", "longest", "CPU mean"),
    )
    for name, way in facts["ways"].items():
        cost = facts["cost_us"].get(name, (None, None, None))
        table.rows.append((name, str(way), *(show(each) for each in cost)))
    table.rows += [(name, f"nothing: {why}", "", "", "") for name, why in missing.items()]
    return table


def _questions(setting: Setting, seen: Watch, values: dict[str, Any]) -> Table:
    """Answer what reads alone can answer."""
    rates, table = seen.ready["rates"], Table(title="Answers", columns=("question", "answer"))
    planned = ", ".join(
        f"{name.removesuffix('_hz')} {show(rates[name])} Hz" for name in rates if "_hz" in name
    )
    told = f"{planned}: {100 * rates['cpu_share']:.2f} % of a core expected"
    if seen.cpu_share is not None:
        told += f", {100 * seen.cpu_share:.2f} % used"
    throttle = [s["throttle_ns"] for s in seen.log.states if s.get("throttle_ns")]
    fields = ", ".join(throttle[-1]) if throttle else "none"
    pids = [pid for pid, _ in seen.facts["processes"] or ()]
    own = os.getpid() in pids
    stamps = dict(_stamps(setting))
    values |= {"violation_fields": fields, "own_pid_listed": own, "pids": len(pids)} | stamps
    whose = (
        "this process's own id is listed"
        if own
        else (
            "this process's own id is not listed"
            + (
                ": ids are the host's, or nothing of ours was there"
                if pids
                else ": the list is empty"
            )
        )
    )
    table.rows += [
        ("rates that the sampler chose", told),
        ("time held back that is counted, by reason", fields),
        ("processes on the GPU", f"{len(pids)}; {whose}"),
        (
            "does the power sensor see all of the time, as far as is known",
            "yes" if seen.facts["covers"] else "no",
        ),
        ("what power counts", str(seen.facts["scope"])),
        ("field of instantaneous power: time stamp", stamps.get("stamp", "the field gives none")),
    ]
    return table


def _stamps(setting: Setting) -> Iterator[tuple[str, Any]]:
    """Look at the time stamps that a field's values carry: do they step, how old are they?"""
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(setting.uuid)
        ages, stamps, values = [], set(), set()
        for _ in range(LOOKS):
            (found,) = nvml.nvmlDeviceGetFieldValues(handle, [POWER_FIELD])
            if found.nvmlReturn == 0 and found.timestamp > 0:
                ages.append(time.time() - found.timestamp / 1e6)
                stamps.add(found.timestamp)
                values.add(found.value.uiVal)
            time.sleep(0.005)
    except nvml.NVMLError as error:
        yield "stamp", f"not read: {error}"
        return
    finally:
        nvml.nvmlShutdown()
    if ages:
        ages.sort()
        yield "stamp_age_s", ages[len(ages) // 2]
        yield (
            "stamp",
            f"{len(stamps)} stamps and {len(values)} values in {len(ages)} reads, 5 ms apart; "
            f"{1000 * ages[len(ages) // 2]:.2f} ms old at the median, {1000 * ages[-1]:.2f} ms at "
            "most",
        )
