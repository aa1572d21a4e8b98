"""Judge MLPerf's compliance tests, which compare a special run with the case's other runs."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.runner import INVALID_TRIES, Unjudgeable
from pytest_mlperf.core import compliance as rules
from pytest_mlperf.core.answer_forms import TOKEN_CODES
from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.core.job import AuditRun, Job, ScoredData
from pytest_mlperf.core.measurement import Accuracy, Run, median_run
from pytest_mlperf.core.metrics import official_metric
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.rulings.disturbance import load_note
from pytest_mlperf.core.rulings.ruling import Ruling, max_log_loss
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.rounds import SCENARIOS, RoundWorkload, compliance
from pytest_mlperf.run.accuracy import Scoring, score_logs
from pytest_mlperf.run.answers import (
    ACCURACY_LOG,
    answer_forms,
    engine_answers,
    logged_answers,
    write_answers,
)
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.stores import atomic
from pytest_mlperf.suite.resolve import data_of

SPEEDS = {"TEST01", "TEST04", "TEST05"}
"""Tests whose last finding compares speeds."""

METRIC_SLACK_SHARES = {"clip": 0.01, "fid": 0.02}
"""Allowed relative differences of scores if the checker names them; else 1 - target."""


@dataclass(frozen=True, kw_only=True)
class _Logs:
    """Hold the log folders of a compliance run, a performance run, and the accuracy run."""

    folder: Path
    reference: Path | None
    answers: Path | None

    @property
    def timed(self) -> Path:
        return self.folder / "performance"

    @property
    def reference_logs(self) -> Path:
        assert self.reference is not None
        return self.reference


def judge_audit(case: CaseRuns, test: str) -> tuple[Ruling, Path]:
    """Judge a compliance test as the reference scripts do; return also the folder of its files.

    Raises UnavailableError if the suite lacks data, answers or settings that the test needs.
    """
    workload = case.of_suite.suite.rules
    assert workload is not None
    needs = compliance.TESTS[test].needs
    data = _data(case) if test == Kind.TEST07 else None
    bounds = _length(case, workload) if test == Kind.TEST09 else (0.0, inf)
    if not case.runs and (needs or case.rate is None):
        try:
            case.add_run()
        except Unjudgeable:  # it still gives the rate
            if "run" in needs:
                raise
    answers = _answers(case) if "answers" in needs else None
    reference = median_run(case.runs, case.of_suite.case.scenario) if case.runs else None
    rate = reference.target_qps if reference else case.rate
    assert rate is not None
    run = _measured(case, test, rate, data)
    logs = _Logs(
        folder=Path(run.folder).parent,
        reference=Path(reference.folder) if reference else None,
        answers=answers,
    )
    audit = rules.Audit(test=test, findings=_findings(case, test, logs, data, bounds))
    for finding in audit.findings:
        atomic.write_text(logs.folder / finding.file, finding.text)
    faults, more = audit.faults, audit.notes
    if test == Kind.TEST01 and answers and not audit.findings[0].passed:
        faults, more = _scored(case, audit, logs, workload)
    shows = compliance.TESTS[test].shows
    headline = Note.of("audit", test=test, reasons=faults or (shows,))
    outcome = Outcome.GATE_FAIL if faults else Outcome.OK
    if faults:
        files = " and ".join(compliance.TESTS[test].verified)
        more = (Note.of("audit_failed", shows=shows, files=files), *more)
    notes: tuple[Words, ...] = more
    slow = test in SPEEDS and audit.findings[-1].faults
    runs = (reference, run) if reference and slow and set(faults) == set(slow) else None
    if runs and _load_explains(test, logs, runs, case.rule.tolerated):
        outcome, notes = Outcome.INCONCLUSIVE, (load_note(runs), *notes)
    return Ruling(outcome=outcome, headline=headline, notes=notes), logs.folder


def _data(case: CaseRuns) -> ScoredData:
    suite = case.of_suite.suite
    if suite.is_mlperf and not suite.workload.compliance_dataset:
        raise UnavailableError(
            "TEST07 needs MLPerf's 990 samples of GPQA: set compliance_dataset in [workload] "
            "to acc_eval_compliance_gpqa.parquet"
        )
    return data_of(case.of_suite, "compliance")


def _measured(case: CaseRuns, test: str, rate: float, data: ScoredData | None) -> Run:
    workload = case.of_suite.suite.rules
    assert workload is not None
    settings = compliance.audit_settings(test, workload.name)
    seeds = compliance.test05_seeds(case.of_suite.suite.round) if test == Kind.TEST05 else None
    audit = AuditRun(test=test, settings=settings, seeds=seeds, data=data)
    for _ in range(INVALID_TRIES):
        run = case.audit(audit, rate)
        if (
            "run" not in compliance.TESTS[test].needs
            or parse_detail(Path(run.folder) / DETAIL).valid
        ):
            break
        rate *= 1.2 if case.of_suite.case.scenario == Scenario.OFFLINE else 1.0
    return run


def _answers(case: CaseRuns) -> Path:
    accuracy: Accuracy | None = case.find_accuracy(required=True)
    if accuracy is None or not accuracy.full:
        raise RunError(
            "scorer",
            "a compliance test compares its answers with an accuracy run on the whole data set, "
            "which this case lacks; set a scorer in [workload], and score all samples of the data "
            "set",
        )
    blocks = sorted((Path(accuracy.folder) / "accuracy").glob(f"block-*/{ACCURACY_LOG}"))
    if len(blocks) != 1:
        raise UnavailableError(
            f"the accuracy run was made in {len(blocks)} parts, as in the quick profile with an "
            "accuracy baseline; a compliance test needs one part: use --mlperf-profile official"
        )
    return blocks[0]


def _findings(
    case: CaseRuns, test: str, logs: _Logs, data: ScoredData | None, bounds: tuple[float, float]
) -> tuple[rules.Finding, ...]:
    timed = logged_answers(logs.timed / ACCURACY_LOG)
    if test in {Kind.TEST01, Kind.TEST08}:
        assert logs.answers is not None
        accuracy = logged_answers(logs.answers)
        if test == Kind.TEST08:
            return (rules.same_predictions(accuracy, timed),)
        same = rules.same_answers(accuracy, timed)
        return (same, rules.speed(test, _score(logs.reference_logs), _score(logs.timed)))
    if test in {Kind.TEST04, Kind.TEST05}:
        return (rules.speed(test, _score(logs.reference_logs), _score(logs.timed)),)
    # Like the reference script, use the token type of the log.
    options = case.of_suite.scorer.options if case.of_suite.scorer else {}
    forms = answer_forms(logs.timed) or (str(options.get("dtype")),)
    width = array(TOKEN_CODES.get(forms[-1], TOKEN_CODES["int64"])).itemsize
    if test == Kind.TEST06:
        end = compliance.constants()["tokens"]["end"]
        scenario = case.of_suite.case.scenario
        return (
            rules.check_token_counts(timed, scenario=scenario, end_token=end, token_bytes=width),
        )
    if data:
        suite = case.of_suite.suite.workload  # a twin has its own reference
        least = (suite.reference or {}).get("exact_match", 0.0) * suite.target
        least = least or compliance.constants()["small"]["score"]
        outputs = engine_answers(logs.timed / ACCURACY_LOG)
        samples = int(parse_detail(logs.timed / DETAIL).values.get("qsl_reported_total_count", 0))
        job = case.scoring_job.on(data)
        scores = _scores_of(case, job, logs.folder / "scored", outputs, samples)
        return (rules.check_accuracy(scores.get("exact_match", 0.0), least),)
    return (rules.check_mean_length(timed, low=bounds[0], high=bounds[1], width=width),)


def _load_explains(test: str, logs: _Logs, runs: tuple[Run, Run], tolerated: float) -> bool:
    scores = _score(logs.reference_logs), _score(logs.timed)
    metric = official_metric(scores[0].scenario)
    lost = [max_log_loss(run, metric, tolerated) for run in runs]
    return rules.load_explains(test, scores, lost)


def _score(folder: Path) -> rules.SpeedScore:
    detail = parse_detail(folder / DETAIL)
    scenario = Scenario(detail.values["effective_scenario"])
    limit = (
        detail.values.get("effective_target_latency_ns") if scenario == Scenario.SERVER else None
    )
    return rules.SpeedScore(
        scenario=scenario,
        value=float(detail.values.get(SCENARIOS[scenario]["result"]) or 0.0),
        valid=detail.valid,
        limit_ns=limit,
    )


def _length(case: CaseRuns, workload: RoundWorkload) -> tuple[float, float]:
    suite = case.of_suite.suite
    twin = suite.workload
    scored = (twin.reference or {}).get("tokens_per_sample") if case.of_suite.data.shared else None
    if tokens := twin.timed_tokens or scored:
        return 0.9 * tokens, 1.1 * tokens
    if not suite.is_mlperf:
        raise UnavailableError(
            f"TEST09 compares lengths with those of {twin.name}'s own reference: set timed_tokens "
            "in [workload] to its mean tokens per answer"
        )
    table = compliance.constants()["length"]
    bounds = table.get(workload.name, table["gpt-oss-120b"])
    return bounds["low"], bounds["high"]


def _scored(
    case: CaseRuns, audit: rules.Audit, logs: _Logs, workload: RoundWorkload
) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Judge TEST01 by speed and by the scores of its differing answers; return (faults, notes)."""
    assert logs.answers is not None
    timed = engine_answers(logs.timed / ACCURACY_LOG)
    accepted = engine_answers(logs.answers, timed)
    metrics = {**workload.metrics, **case.of_suite.round_scenario.metrics}
    job, samples, scores = case.scoring_job, case.scored_pass.accuracy.total, {}
    for name, outputs in (("baseline", accepted), ("compliance", timed)):
        common = {index: outputs[index] for index in accepted}
        scores[name] = _scores_of(case, job, logs.folder / name, common, samples)
        text = "\n".join(compliance.accuracy_lines(scores[name], metrics)) + "\n"
        atomic.write_text(logs.folder / f"{name}_accuracy.txt", text)
    slack = {name: METRIC_SLACK_SHARES.get(name, 1 - workload.targets[0]) for name in metrics}
    apart = rules.score_differences(scores["baseline"], scores["compliance"], slack)
    speed = audit.findings[1].faults
    if apart:
        return (*audit.findings[0].faults, *apart, *speed), audit.notes
    return speed, (*audit.findings[0].faults, Note.of("scores_agree"), *audit.notes)


def _scores_of(
    case: CaseRuns, job: Job, folder: Path, outputs: Mapping[int, bytes], samples: int
) -> dict[str, float]:
    if job.scoring.scorer is None or not outputs:
        return {}
    folder.mkdir(exist_ok=True)
    log, indices = folder / ACCURACY_LOG, sorted(outputs)
    write_answers(log, [outputs[index] for index in indices])
    scoring = Scoring(
        folder=folder,
        dataset=job.dataset,
        scorer=job.scoring.scorer,
        model=job.model,
        suite=job.suite,
        patience=case.conditions.patience,
        show=case.show,
    )
    block = {"log": str(log), "indices": indices}
    return dict(score_logs(scoring, [block], samples)[0].scores)
