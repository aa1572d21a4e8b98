"""Read a DCGM exporter's page during a run, for GPUs of another machine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_mlperf.core.energy.exporter import (
    ENERGY_METRIC,
    ExporterLook,
    Reader,
    exported_energy,
    models_of,
    read_exporter,
)
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.run.figures import Figures, Findings
from pytest_mlperf.run.logs import TimedLog
from pytest_mlperf.run.power.figures import findings_of
from pytest_mlperf.run.scraping import PageError, Scraper, read_page
from pytest_mlperf.run.server_hardware import ProbePage

POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """Describe a DCGM exporter of a server's GPUs, or a probe on the server's machine.

    Attributes:
        url: Address of its page, "http://gpu-box:9400/metrics".
        chosen: UUIDs or host names of the GPUs to measure; () for all.
        gpus: Their number and model: "8 x NVIDIA H200".
        probe: Command to run instead of reading a page, see `ProbePage`.
    """

    url: str = ""
    chosen: tuple[str, ...] = ()
    gpus: str = ""
    probe: tuple[str, ...] = ()


@dataclass(kw_only=True)
class ExporterLog:
    """Hold the readings of an exporter during a run.

    Attributes:
        failures: Errors of failed readings.
        clock_stepped: Whether the wall clock was set, so that the run's window is unknown.
        by_probe: Whether a probe was read in place of an exporter.
    """

    looks: list[ExporterLook] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    clock_stepped: bool = False
    by_probe: bool = False


@functools.lru_cache
def find_exporter(url: str, chosen: tuple[str, ...] = ()) -> Exporter:
    """Return the DCGM exporter at `url`; SuiteError if it shows no GPU, or lacks a `chosen` one."""
    try:
        content = read_page(url)
    except PageError as error:
        raise SuiteError(
            f"{error}; start the DCGM exporter first, or correct the address"
        ) from None
    if not (page_gpus := read_exporter(content)):
        raise SuiteError(
            f"{url} shows no {ENERGY_METRIC} of a GPU: correct the address, or let the DCGM "
            "exporter export this field"
        )
    gpus = read_exporter(content, chosen)
    for word in chosen:
        if not any(word in (gpu.uuid, gpu.host) for gpu in gpus.values()):
            names = ", ".join(
                sorted({name for g in page_gpus.values() for name in (g.uuid, g.host)})
            )
            raise SuiteError(f"{url} shows no GPU {word}; mlperf_dcgm_gpus may name {names}")
    return Exporter(url=url, chosen=chosen, gpus=models_of(list(gpus.values())))


@contextlib.contextmanager
def watched_exporter(exporter: Exporter) -> Iterator[ExporterLog]:
    """Read an exporter's page repeatedly inside the `with` block; yield the readings."""
    log = ExporterLog(by_probe=bool(exporter.probe))

    def take(time_s: float, pages: Sequence[bytes]) -> None:
        log.looks.append(ExporterLook(time_s=time_s, gpus=read_exporter(pages[0], exporter.chosen)))

    page = ProbePage(exporter.probe) if exporter.probe else exporter.url
    with Scraper([page], take, period_s=POLL_SECONDS) as scraper:
        log.failures = scraper.failures
        yield log
    log.clock_stepped = scraper.clock_stepped


def exporter_energy(
    figures: Figures, log: ExporterLog, timed: TimedLog, *, expected: int | None
) -> Findings:
    """Return a run's energy from a DCGM exporter, and metrics per joule; `expected`: GPU count."""
    begin_s, end_s = timed.window_s
    failure = log.failures[-1] if log.failures else ""
    looks = log.looks
    if log.clock_stepped:
        looks, failure = [], "the wall clock was set during the run"
    reader: Reader = "probe" if log.by_probe else "exporter"
    seen = exported_energy(looks, begin_s, end_s, expected=expected, failure=failure, reader=reader)
    return findings_of(figures, seen)
