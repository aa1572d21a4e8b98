"""Names beyond those of `pytest_mlperf` for engines, data sets, scorers, builders and add-ons.

The adapters of this distribution import these and `pytest_mlperf`'s, and nothing deeper. Each is
imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from pytest_mlperf import importer

__all__ = [
    "API",
    "END_EVENT",
    "EVENTS_FILE",
    "MLC_ENDPOINTS",
    "PLAIN_PRECISIONS",
    "REPLICA_NUMBER",
    "Case",
    "CaseResult",
    "ChildProcess",
    "Command",
    "Criterion",
    "Format",
    "LoadGenSettings",
    "OptionGroup",
    "PrecisionName",
    "Progress",
    "Prompts",
    "RecordedPoint",
    "ReportedSession",
    "Results",
    "Rule",
    "Run",
    "Subject",
    "accept_runs",
    "answer_of",
    "broken",
    "check_devices",
    "ended",
    "inflate",
    "is_deeper",
    "is_speech",
    "judge_runs",
    "not_imported",
    "own_length",
    "page_samples",
    "parse_json",
    "read_answers",
    "read_arrays",
    "read_configuration",
    "read_point",
    "read_results",
    "read_server",
    "require_options",
    "session_of",
    "sha256",
    "some",
    "text_of",
    "usable_cores",
    "write_results",
]

if TYPE_CHECKING:
    from pytest_mlperf.bench.foreign_runs import accept_runs, judge_runs, session_of
    from pytest_mlperf.core.addons import Command, Criterion, Format, OptionGroup
    from pytest_mlperf.core.case import PLAIN_PRECISIONS, Case, PrecisionName
    from pytest_mlperf.core.errors import Rule, require_options, text_of
    from pytest_mlperf.core.extension import (
        REPLICA_NUMBER,
        Progress,
        Prompts,
        is_speech,
        own_length,
    )
    from pytest_mlperf.core.imports import not_imported
    from pytest_mlperf.core.job import MLC_ENDPOINTS, LoadGenSettings
    from pytest_mlperf.core.measurement import Run, Subject
    from pytest_mlperf.core.prometheus import page_samples
    from pytest_mlperf.core.results import CaseResult, Results
    from pytest_mlperf.core.server import read_server
    from pytest_mlperf.core.untrusted import inflate, is_deeper, parse_json
    from pytest_mlperf.core.untrusted_text import broken, some
    from pytest_mlperf.hardware.devices import check_devices
    from pytest_mlperf.hardware.host import usable_cores
    from pytest_mlperf.hookspecs import API
    from pytest_mlperf.processes import ChildProcess, answer_of, ended
    from pytest_mlperf.reports.formats import ReportedSession
    from pytest_mlperf.stores.digests import sha256
    from pytest_mlperf.stores.endpoints import (
        END_EVENT,
        EVENTS_FILE,
        RecordedPoint,
        read_configuration,
        read_point,
    )
    from pytest_mlperf.stores.endpoints_answers import read_answers
    from pytest_mlperf.stores.foreign import read_arrays
    from pytest_mlperf.stores.results import read_results, write_results

_ORIGINS = {
    "API": "hookspecs:API",
    "Case": "core.case:Case",
    "CaseResult": "core.results:CaseResult",
    "ChildProcess": "processes:ChildProcess",
    "Command": "core.addons:Command",
    "Criterion": "core.addons:Criterion",
    "END_EVENT": "stores.endpoints:END_EVENT",
    "EVENTS_FILE": "stores.endpoints:EVENTS_FILE",
    "Format": "core.addons:Format",
    "LoadGenSettings": "core.job:LoadGenSettings",
    "MLC_ENDPOINTS": "core.job:MLC_ENDPOINTS",
    "OptionGroup": "core.addons:OptionGroup",
    "PLAIN_PRECISIONS": "core.case:PLAIN_PRECISIONS",
    "PrecisionName": "core.case:PrecisionName",
    "Progress": "core.extension:Progress",
    "Prompts": "core.extension:Prompts",
    "REPLICA_NUMBER": "core.extension:REPLICA_NUMBER",
    "RecordedPoint": "stores.endpoints:RecordedPoint",
    "ReportedSession": "reports.formats:ReportedSession",
    "Results": "core.results:Results",
    "Rule": "core.errors:Rule",
    "Run": "core.measurement:Run",
    "Subject": "core.measurement:Subject",
    "accept_runs": "bench.foreign_runs:accept_runs",
    "answer_of": "processes:answer_of",
    "broken": "core.untrusted_text:broken",
    "check_devices": "hardware.devices:check_devices",
    "ended": "processes:ended",
    "inflate": "core.untrusted:inflate",
    "is_deeper": "core.untrusted:is_deeper",
    "is_speech": "core.extension:is_speech",
    "judge_runs": "bench.foreign_runs:judge_runs",
    "not_imported": "core.imports:not_imported",
    "own_length": "core.extension:own_length",
    "page_samples": "core.prometheus:page_samples",
    "parse_json": "core.untrusted:parse_json",
    "read_answers": "stores.endpoints_answers:read_answers",
    "read_arrays": "stores.foreign:read_arrays",
    "read_configuration": "stores.endpoints:read_configuration",
    "read_point": "stores.endpoints:read_point",
    "read_results": "stores.results:read_results",
    "read_server": "core.server:read_server",
    "require_options": "core.errors:require_options",
    "session_of": "bench.foreign_runs:session_of",
    "sha256": "stores.digests:sha256",
    "some": "core.untrusted_text:some",
    "text_of": "core.errors:text_of",
    "usable_cores": "hardware.host:usable_cores",
    "write_results": "stores.results:write_results",
}
"""Where each name is defined, below `pytest_mlperf`."""

if not TYPE_CHECKING:  # or every name would be one to a type checker
    __getattr__ = importer(__name__, _ORIGINS)
