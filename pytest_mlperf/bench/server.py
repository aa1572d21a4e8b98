"""Find the machine on which a case's server runs, and the sources of its identity."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.power.exporter import Exporter, find_exporter
from pytest_mlperf.run.server_hardware import ServerSources
from pytest_mlperf.suite.pairs import Testable
from pytest_mlperf.suite.places import expand, unset_in
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.tables import ServerEntry


def sources_of(planned: Testable, exporter: Exporter | None = None) -> ServerSources | None:
    """Return the sources that identify the server of a case; None for a case without a url.

    Args:
        exporter: Exporter of the session, for entries that name none.

    Raises:
        SuiteError: An environment variable in the suite is not set.
    """
    if not isinstance(planned, Planned) or not planned.url or unset_in(planned.options):
        return None  # an unset variable of the options is reported when they are resolved
    entry = planned.engine.server or ServerEntry()
    table = expand(entry.model_dump(exclude_none=True))
    if exporter and not entry.exporter:
        table |= {"exporter": exporter.url, "gpus": exporter.chosen}
    return ServerSources(
        url=planned.url,
        accelerator=planned.case.accelerator,
        probe=tuple(table.get("probe", ())),
        exporter=table.get("exporter", ""),
        gpus=tuple(table["gpus"]),
        kubernetes=table.get("kubernetes", ""),
    )


def on_server(planned: Testable, conditions: Conditions) -> Conditions:
    """Return a case's conditions, with the server's machine if that is not this machine.

    Raises:
        RunError: The hardware cannot be determined, see `ServerSources.machine`.
    """
    sources = sources_of(planned, conditions.exporter)
    machine = sources.machine(conditions.machine) if sources else conditions.machine
    if sources is None or machine.server is None:
        return conditions
    if planned.limit_w:
        raise RunError("server", "power_limit_w cannot be set on another machine: remove it")
    exporter = conditions.exporter
    if sources.exporter:
        with contextlib.suppress(SuiteError):  # AMD's page has no DCGM counters
            exporter = find_exporter(sources.exporter, sources.gpus)
    elif sources.probe and machine.server.properties.get("gpu"):
        exporter = Exporter(
            gpus=machine.server.surroundings["server.hardware"], probe=sources.probe
        )
    return replace(conditions, machine=machine, server=sources, exporter=exporter)
