"""Restore a baseline's recorded engine options and environment variables, to measure it again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.core.baseline import changed_keys
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.paths import OUTSIDE_MARK, placeless
from pytest_mlperf.core.untrusted_text import every_text
from pytest_mlperf.run.project import CHANGED_MARK
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.resolve import engine_of

OPTIONS_KEY, ENGINE_PREFIX, VARIABLE_PREFIX = "options", "engine.", "engine.environment."
"""Fingerprint key of the options, and prefixes of all engine facts and of its variables."""

_HOME = re.compile(r"(?<![\w.~/])~(?=/|$)")


class EarlierSide(NamedTuple):
    """Hold a case's job with its baseline's engine options and environment, and their title."""

    job: Job
    title: str


def earlier_side(case: CaseRuns) -> EarlierSide | None:
    """Return the case with its baseline's engine options and environment; None if unchanged."""
    if case.record is None or case.subject is None or not isinstance(case.planned, Planned):
        return None
    recorded = case.record.fingerprint
    changed = changed_keys(recorded, case.subject.fingerprint)
    variables = {
        key.removeprefix(VARIABLE_PREFIX): recorded.get(key)
        for key in changed
        if key.startswith(VARIABLE_PREFIX)
    }
    job = replace(case.suite_job, variables=variables)
    if OPTIONS_KEY not in recorded or OPTIONS_KEY not in changed:
        title = f"the baseline's environment ({', '.join(variables)})"
        return EarlierSide(job=job, title=title) if variables else None
    today = case.planned.options
    try:
        options = dict(json.loads(recorded[OPTIONS_KEY]))
        engine = engine_of(case.planned, job.model, _restored(options, today))
    except (MlperfError, ValueError, TypeError, RecursionError) as error:
        raise MlperfError(f"the baseline's options are no longer valid: {error}") from None
    names = [n for n in {**today, **options} if _stored(today.get(n)) != options.get(n)]
    return EarlierSide(
        job=replace(job, engine=engine, facts={**job.facts, OPTIONS_KEY: recorded[OPTIONS_KEY]}),
        title=f"the baseline's options ({', '.join([*names, *variables])})",
    )


def _stored(value: Any) -> Any:
    return placeless(value, home=str(Path.home()))


def _restored(options: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return a baseline's options with full paths: from `current` if equal, else "~" expanded."""

    def whole(text: str) -> str:
        if f"{OUTSIDE_MARK}/" in text:
            raise MlperfError(f"the baseline stores only the end of the path {text}")
        return _HOME.sub(lambda _: str(Path.home()), text)

    same = {name: value for name, value in current.items() if _stored(value) == options.get(name)}
    return {**every_text({n: v for n, v in options.items() if n not in same}, whole), **same}


def decision_advice(case: CaseRuns) -> str:
    """Return advice on how to compare a dropped case with the baseline's build by hand."""
    usual = "name the baseline's build with --mlperf-against"
    record, planned = case.record, case.planned
    if not isinstance(planned, Planned):
        return "check that build out, and measure the test there"
    if record is None or case.subject is None:
        return usual
    suite = case.policy.shown(planned.path)
    copy = case.policy.shown(planned.path.with_name(f"before-{planned.path.name}"))
    label = f"::{planned.engine.full_label}" if len(planned.suite.entries) > 1 else ""
    turns = f"in it, and run pytest-mlperf turns {shlex.join([copy + label, suite + label])}"
    if planned.options.get("url"):  # the server is not part of a build
        return f"copy {suite} to {copy}, set the url of a server of the earlier build {turns}"
    recorded, facts = record.fingerprint, case.subject.fingerprint
    restored = (OPTIONS_KEY, VARIABLE_PREFIX)
    changed = [key for key in changed_keys(recorded, facts) if not key.startswith(restored)]
    installed = {one.name: one.version for one in distributions()}
    packages = {
        name: recorded[key]
        for key in changed
        for name in [key.partition(".")[2]]
        if key.startswith(ENGINE_PREFIX) and key in recorded and key in facts
        if facts[key] in (installed.get(name), facts.get(f"python.{name}"))
    }
    commit = record.runs[-1].commit or CHANGED_MARK
    exchanged = commit if not changed and not commit.endswith(CHANGED_MARK) else ""
    if changed and all(key.partition(".")[2] in packages for key in changed):
        wheels = " ".join(f"{name}=={version}" for name, version in packages.items())
        exchanged = shlex.quote(f"pip:{wheels}")
    if exchanged:
        return f"run pytest {suite} --mlperf-against {exchanged}"
    if not changed or not all(key.startswith(ENGINE_PREFIX) for key in changed):
        return usual
    return f"copy {suite} to {copy}, set the earlier model {turns}"
