"""Export the names that extensions and add-ons need beyond `pytest_mlperf`, lazily."""

from typing import TYPE_CHECKING

from pytest_mlperf import importer

if TYPE_CHECKING:
    from pytest_mlperf.bench.foreign_runs import accept_runs as accept_runs
    from pytest_mlperf.bench.foreign_runs import judge_runs as judge_runs
    from pytest_mlperf.bench.foreign_runs import session_of as session_of
    from pytest_mlperf.core.addons import Command as Command
    from pytest_mlperf.core.addons import Criterion as Criterion
    from pytest_mlperf.core.addons import Format as Format
    from pytest_mlperf.core.addons import OptionGroup as OptionGroup
    from pytest_mlperf.core.case import PLAIN_PRECISIONS as PLAIN_PRECISIONS
    from pytest_mlperf.core.case import Case as Case
    from pytest_mlperf.core.case import Kind as Kind
    from pytest_mlperf.core.case import PrecisionName as PrecisionName
    from pytest_mlperf.core.case import Scenario as Scenario
    from pytest_mlperf.core.errors import Rule as Rule
    from pytest_mlperf.core.errors import require_options as require_options
    from pytest_mlperf.core.errors import text_of as text_of
    from pytest_mlperf.core.extension import REPLICA_NUMBER as REPLICA_NUMBER
    from pytest_mlperf.core.extension import Progress as Progress
    from pytest_mlperf.core.extension import Prompts as Prompts
    from pytest_mlperf.core.extension import is_speech as is_speech
    from pytest_mlperf.core.extension import own_length as own_length
    from pytest_mlperf.core.imports import not_imported as not_imported
    from pytest_mlperf.core.job import MLC_ENDPOINTS as MLC_ENDPOINTS
    from pytest_mlperf.core.job import LoadGenSettings as LoadGenSettings
    from pytest_mlperf.core.measurement import Run as Run
    from pytest_mlperf.core.measurement import Subject as Subject
    from pytest_mlperf.core.metrics import METRICS as METRICS
    from pytest_mlperf.core.numbers import duration as duration
    from pytest_mlperf.core.numbers import percent as percent
    from pytest_mlperf.core.numbers import plural as plural
    from pytest_mlperf.core.paths import placeless as placeless
    from pytest_mlperf.core.prometheus import page_samples as page_samples
    from pytest_mlperf.core.results import CaseResult as CaseResult
    from pytest_mlperf.core.results import Results as Results
    from pytest_mlperf.core.server import read_server as read_server
    from pytest_mlperf.core.untrusted import inflate as inflate
    from pytest_mlperf.core.untrusted import is_deeper as is_deeper
    from pytest_mlperf.core.untrusted import parse_json as parse_json
    from pytest_mlperf.core.untrusted_text import broken as broken
    from pytest_mlperf.core.untrusted_text import csv_cell as csv_cell
    from pytest_mlperf.core.untrusted_text import json_text as json_text
    from pytest_mlperf.core.untrusted_text import markdown_text as markdown_text
    from pytest_mlperf.core.untrusted_text import nearest as nearest
    from pytest_mlperf.core.untrusted_text import some as some
    from pytest_mlperf.core.untrusted_text import visible as visible
    from pytest_mlperf.core.verdict import BaselineReference as BaselineReference
    from pytest_mlperf.core.verdict import MetricBaseline as MetricBaseline
    from pytest_mlperf.core.verdict import MetricVerdict as MetricVerdict
    from pytest_mlperf.core.verdict import PairedVerdict as PairedVerdict
    from pytest_mlperf.hardware.devices import check_devices as check_devices
    from pytest_mlperf.hardware.host import usable_cores as usable_cores
    from pytest_mlperf.hookspecs import API as API
    from pytest_mlperf.processes import ChildProcess as ChildProcess
    from pytest_mlperf.processes import answer_of as answer_of
    from pytest_mlperf.processes import ended as ended
    from pytest_mlperf.reports.formats import ReportedSession as ReportedSession
    from pytest_mlperf.reports.formats import parse_report as parse_report
    from pytest_mlperf.reports.formats import write_report as write_report
    from pytest_mlperf.reports.sentences import sentence as sentence
    from pytest_mlperf.stores.atomic import write_whole as write_whole
    from pytest_mlperf.stores.digests import sha256 as sha256
    from pytest_mlperf.stores.endpoints import END_EVENT as END_EVENT
    from pytest_mlperf.stores.endpoints import EVENTS_FILE as EVENTS_FILE
    from pytest_mlperf.stores.endpoints import RecordedPoint as RecordedPoint
    from pytest_mlperf.stores.endpoints import accuracy_records as accuracy_records
    from pytest_mlperf.stores.endpoints import read_configuration as read_configuration
    from pytest_mlperf.stores.endpoints import read_point as read_point
    from pytest_mlperf.stores.foreign import read_arrays as read_arrays
    from pytest_mlperf.stores.results import read_results as read_results
    from pytest_mlperf.stores.results import write_results as write_results
    from pytest_mlperf.suite.benchmarks import benchmark_case as benchmark_case

_ORIGINS = {
    "bench.foreign_runs": ("accept_runs", "judge_runs", "session_of"),
    "core.addons": ("Command", "Criterion", "Format", "OptionGroup"),
    "core.case": ("Case", "Kind", "PLAIN_PRECISIONS", "PrecisionName", "Scenario"),
    "core.errors": ("Rule", "require_options", "text_of"),
    "core.extension": ("Progress", "Prompts", "REPLICA_NUMBER", "is_speech", "own_length"),
    "core.imports": ("not_imported",),
    "core.job": ("LoadGenSettings", "MLC_ENDPOINTS"),
    "core.measurement": ("Run", "Subject"),
    "core.metrics": ("METRICS",),
    "core.numbers": ("duration", "percent", "plural"),
    "core.paths": ("placeless",),
    "core.prometheus": ("page_samples",),
    "core.results": ("CaseResult", "Results"),
    "core.server": ("read_server",),
    "core.untrusted": ("inflate", "is_deeper", "parse_json"),
    "core.untrusted_text": (
        *("broken", "csv_cell", "json_text", "markdown_text", "nearest", "some", "visible"),
    ),
    "core.verdict": ("BaselineReference", "MetricBaseline", "MetricVerdict", "PairedVerdict"),
    "hardware.devices": ("check_devices",),
    "hardware.host": ("usable_cores",),
    "hookspecs": ("API",),
    "processes": ("ChildProcess", "answer_of", "ended"),
    "reports.formats": ("ReportedSession", "parse_report", "write_report"),
    "reports.sentences": ("sentence",),
    "stores.atomic": ("write_whole",),
    "stores.digests": ("sha256",),
    "stores.endpoints": (
        "END_EVENT",
        "EVENTS_FILE",
        "RecordedPoint",
        "accuracy_records",
        "read_configuration",
        "read_point",
    ),
    "stores.foreign": ("read_arrays",),
    "stores.results": ("read_results", "write_results"),
    "suite.benchmarks": ("benchmark_case",),
}

if not TYPE_CHECKING:  # else a type checker would accept any name
    __all__, __getattr__ = importer(__name__, _ORIGINS)
