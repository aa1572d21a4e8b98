"""Test the tables of replicas, GPUs and server of a run, for the page."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.core.measurement import GpuRun, ReplicaRun, Run
from pytest_mlperf.reports.rows import gpu_table, replica_table, server_table
from tests.reports.verdicts import run

MEASURED = run()


def test_replicas_of_the_last_run_are_listed_with_their_gpus() -> None:
    """Clocks are those of the slowest of a replica's GPUs, heat and cap of the hottest."""
    replicas = tuple(
        ReplicaRun(
            name=f"replica {n}",
            gpus=(f"g{2 * n}", f"g{2 * n + 1}"),
            samples=1234,
            throughput=99.5,
            latency_s=0.02,
            shares=(share, share),
        )
        for n, share in enumerate((1.0, 0.89))
    )
    gpus = tuple(
        GpuRun(
            uuid=f"g{n}",
            mean_w=300.0 + n,
            state={"sm_mhz": 1900.0 - n, "temperature_c": 60.0 + n, "power_cap_share": n / 10},
        )
        for n in range(4)
    )
    whole = replace(MEASURED, replicas=replicas, hardware=replace(MEASURED.hardware, gpus=gpus))

    first, second = filled(whole)

    assert first == {
        "replica": "replica 0",
        "samples": "1,234",
        "samples/s": "99.5",
        "mean latency": "20 ms",
        "of the median": "100 %",
        "power": "601 W",
        "SM clock": "1899 MHz",
        "heat": "61 °C",
        "power capped": "10 %",
    }
    assert second["of the median"] == "89 %"
    assert (
        list(filled(replace(whole, hardware=replace(whole.hardware, gpus=())))[0])[-1]
        == "of the median"
    )
    assert replica_table([MEASURED]) is None
    assert replica_table([]) is None


def test_gpus_and_server_of_the_last_run_are_listed() -> None:
    first = GpuRun(
        uuid="a",
        name="GPU 4",
        joules=12_345.6,
        uncertainty_j=51.0,
        mean_w=500.4,
        state={"sm_mhz": 1900.0, "nvlink_sent": 3.1e10, "nvlink_received": 2.9e10},
    )
    table = gpu_table(
        [replace(MEASURED, hardware=replace(MEASURED.hardware, gpus=(first, GpuRun(uuid="b"))))]
    )
    assert table is not None
    assert table.filled == (
        ["GPU", "energy", "power", "SM clock", "NVLink sent / received"],
        [["GPU 4", "12,346 J ± 51", "500 W", "1900 MHz", "31 GB/s / 29 GB/s"], ["b"] + [""] * 4],
    )
    assert gpu_table([MEASURED]) is None
    assert gpu_table([]) is None
    server = {"waiting@8": 0.0, "waiting_max@8": 3.0, "waiting@64": 38.2, "preemptions@64": 2.0}
    table = server_table([replace(MEASURED, serving=replace(MEASURED.serving, server=server))])
    assert table is not None
    assert table.filled == (
        ["server", "waiting queue", "preemptions"],
        [["at 8", "0, 3 at most", ""], ["at 64", "38.2", "2"]],
    )
    assert server_table([MEASURED]) is None
    assert server_table([]) is None


def filled(run: Run) -> list[dict[str, str]]:
    """Return the rows of the replicas' table, without cells that are empty."""
    table = replica_table([run])
    assert table is not None
    columns, rows = table.filled
    return [dict(zip(columns, row, strict=True)) for row in rows]
