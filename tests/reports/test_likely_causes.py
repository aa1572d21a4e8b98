"""Test that causes are reported only with evidence; without any, the report says so."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.reason import DURATION_PLACEHOLDER, Sign, SignKey
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome, Verdict
from pytest_mlperf.reports.causes import Cause, Strength, causes, change_direction
from pytest_mlperf.run.figures import run_arguments
from tests.core.made import make_baseline_run
from tests.core.made import make_record as record
from tests.reports import verdicts
from tests.reports.verdicts import ALL, CASE, DROP, metric

SET = 'set 2026-10-02 at 3f2c1ab0d9e8: "onnxruntime 1.20"'


def texts_of(found_causes: tuple[Cause, ...]) -> list[str]:
    return [cause.says for cause in found_causes]


def drop(*changed: str, runs: tuple[Run, ...] = (), **fields: Any) -> Verdict:
    verdict_fields: dict[str, Any] = {"runs": runs or DROP.runs, **fields}
    about = {
        name: verdict_fields.pop(name) for name in ("source", "unknown") if name in verdict_fields
    }
    return replace(
        DROP, baseline=replace(DROP.baseline, changed=changed, **about), **verdict_fields
    )


def kept(number: int = 1, **fields: Any) -> BaselineRun:
    return make_baseline_run(session=str(number), **fields)


def run_now(**fields: Any) -> Run:
    return replace(verdicts.run(1), **run_arguments(**fields))


DIGEST = "6b57b985f9b11a708a2b01f985b056950dc2501b08656e59cdc0e66943beee72"


ALONE = "; no other recorded fact changed"

LOADED = "files.loaded 2 in git since 3f2c1ab0d9e8: data.py, suites/a.mlperf.toml"
OTHER = "files.other 1 in git since 3f2c1ab0d9e8: README.md"


def test_changes_since_the_baseline_are_reported() -> None:
    cases: list[tuple[list[str], list[str]]] = [
        (["engine.version 1.2.0 → 1.2.1"],
         [f"engine.version 1.2.0 → 1.2.1 since the baseline{ALONE}"]),
        (["engine.version 1 → 2", "machine.driver 570 → 580"],
         ["engine.version 1 → 2 since the baseline", "machine.driver 570 → 580 since the "
          "baseline"]),
        ([f"engine.x{n} 1 → 2" for n in range(6)],
         ["engine.x0 1 → 2, engine.x1 1 → 2, engine.x2 1 → 2, engine.x3 1 → 2 and 2 more since "
          f"the baseline{ALONE}"]),
        (['options {"batch": 8, "threads": 2} → {"batch": 8, "threads": 1}'],
         [f"options: threads 2 → 1 since the baseline{ALONE}"]),
        ([f"engine.weights_sha256 {DIGEST} → {DIGEST[::-1]}", "options {} → {broken"],
         ["engine.weights_sha256 6b57b985… → 27eeeb34…, options {} → {broken since the "
          f"baseline{ALONE}"]),
        ([f"dataset {DIGEST} → {DIGEST[::-1]}", "engine.version 1 → 2"],
         ["the data differ from the baseline's: dataset 6b57b985… → 27eeeb34…",
          "engine.version 1 → 2 since the baseline"]),
        ([LOADED], [f"files that the run loaded changed: {LOADED[13:]}{ALONE}"]),
        ([LOADED, OTHER],
         [f"files that the run loaded changed: {LOADED[13:]}",
          f"files changed, but it is unknown whether the run loaded them: {OTHER[12:]}"]),
        ([LOADED, "engine.version 1 → 2", "inputs.first 3f → 4a"],
         ["the data set's input() returned other values than for the baseline: "
          "inputs.first 3f → 4a", "engine.version 1 → 2 since the baseline",
          f"files that the run loaded changed: {LOADED[13:]}"]),
        ([LOADED, "inputs.first 3f → 4a"],
         [f"files that the run loaded changed: {LOADED[13:]}",
          "the data set's input() returned other values than for the baseline: "
          "inputs.first 3f → 4a"]),
        ([OTHER, "engine.version 1 → 2"],
         ["engine.version 1 → 2 since the baseline",
          f"files changed, but it is unknown whether the run loaded them: {OTHER[12:]}"]),
        (['dataset.options {"samples": 32} → {"samples": 64}'],
         [f"the data differ from the baseline's: dataset.options: samples 32 → 64{ALONE}"]),
    ]  # fmt: skip
    for changed, expected in cases:
        assert texts_of(causes(drop(*changed), None, ())) == expected


def test_a_provisional_drop_has_causes_and_moves_no_sibling() -> None:
    leaning = replace(metric(outcome=Outcome.PROVISIONAL), direction="drop")
    open_ = drop("engine.version 1 → 2", outcome=Outcome.PROVISIONAL, metrics=(leaning,))

    assert texts_of(causes(open_, None, ())) == [f"engine.version 1 → 2 since the baseline{ALONE}"]
    assert change_direction(open_) is None
    towards_ok = replace(open_, metrics=(replace(leaning, direction="ok"),))
    assert causes(towards_ok, None, ()) == ()


def sibling(
    workload: str, engine: str, change: float | None, *, accelerator: str = "H200"
) -> Verdict:
    """Return another case: it changed by this share, did not (0), or was undecided (None)."""
    case = replace(CASE, workload=workload, engine=engine, accelerator=accelerator)
    word = Outcome.INCONCLUSIVE if change is None else Outcome.IMPROVED if change else Outcome.OK
    word = Outcome.PERF_DROP if change and change < 0 else word
    subject = Subject(identity={}, fingerprint={"engine": engine})
    judged = metric(outcome=word, change=change)
    return replace(DROP, case=case, outcome=word, metrics=(judged,), subject=subject)


ORT = replace(
    drop("engine.version 1 → 2", "machine.driver 570 → 580"),
    subject=Subject(identity={}, fingerprint={"engine": "ort"}),
)
SAME = [sibling(name, "ort", -0.051 - n / 100) for n, name in enumerate(("bert", "gptj", "dlrm"))]
OTHERS = [sibling("bert", "trt", 0.0), sibling("gptj", "vllm", 0.0)]
FELL = [sibling("bert", "trt", -0.04), sibling("gptj", "vllm", -0.05)]
ENGINE, DRIVER = (f"{text} since the baseline" for text in ORT.baseline.changed)


def test_where_else_it_fell_tells_engine_from_machine() -> None:
    """Accuracies are compared in points."""
    cases: list[tuple[list[Verdict], list[str]]] = [
        ([*SAME, sibling("sdxl", "ort", 0.0)],
         [ENGINE, DRIVER, "ort got worse in 3 of 4 other models too, by 5.1 % to 7.1 %"]),
        ([*SAME, sibling("resnet50", "ort", None), *OTHERS],
         [ENGINE, "ort got worse in 3 of 3 other models too, by 5.1 % to 7.1 %; so did 0 of 2 "
                  "cases of other engines on H200", DRIVER]),
        ([*SAME, *FELL],
         [DRIVER, "2 of 2 cases of other engines on H200 (trt, vllm) got worse as well, by 4 % "
                  "to 5 %, and 3 of 3 other cases of ort: likely the machine, its driver, or "
                  "something that all of them use",
          ENGINE]),
        ([sibling("bert", "ort", 0.0), sibling("gptj", "ort", 0.02), *OTHERS],
         [ENGINE, DRIVER, "only this case: 0 of 2 other cases of ort and 0 of 2 cases of other "
          "engines got worse"]),
        # Another machine, too few others, itself, another question, and what was not judged.
        ([sibling("bert", "trt", -0.04, accelerator="L40S")], [ENGINE, DRIVER]),
        ([sibling("dlrm", "trt", -0.04), *OTHERS], [ENGINE, DRIVER]),
        ([ORT], [ENGINE, DRIVER]),
        ([replace(one, kind=Kind.ACCURACY) for one in SAME], [ENGINE, DRIVER]),
        ([verdicts.ERROR, verdicts.INVALID, verdicts.NO_BASELINE], [ENGINE, DRIVER]),
    ]  # fmt: skip
    for others, expected in cases:
        assert texts_of(causes(ORT, None, others)) == expected
    bert = replace(verdicts.ACC_DROP, case=replace(CASE, workload="bert"))
    (_, where, *_) = texts_of(causes(bert, None, [verdicts.ACC_DROP]))
    assert where == "ort got worse in 1 of 1 other models too, by 2.31 points"


def sign(key: SignKey, text: str, **fields: Any) -> Sign:
    return Sign(key=key, text=text, **fields)


def cap(seconds: float, share: float) -> Sign:
    text = f"clocks are held back to stay within the power limit: {DURATION_PLACEHOLDER}"
    return sign(SignKey.SW_POWER_CAP, text, seconds=seconds, share=share)


SLOWDOWN = f"heat (hardware slowdown) halted the clocks for {DURATION_PLACEHOLDER}"
HEAT = sign(SignKey.HW_THERMAL_SLOWDOWN, SLOWDOWN, seconds=0.3, share=0.005)
LINK = sign(SignKey.PCIE_GENERATION, "the PCIe link ran at generation 3, not generation 5")


def test_signs_of_the_sampler_are_evidence() -> None:
    capped = "clocks are held back to stay within the power limit"
    link = "the PCIe link ran at generation 3, not generation 5"
    replayed = [sign(SignKey.PCIE_REPLAYS, f"{n} replays on the PCIe link") for n in (3, 12)]
    cases: list[tuple[list[tuple[Sign, ...]], list[str]]] = [
        ([(cap(31.2, 0.52),), (), (cap(30.0, 0.5),)],
         [f"in 2 of 3 runs: {capped}: 30.60 s, 51.0% of the run"]),
        ([(HEAT,)], ["heat (hardware slowdown) halted the clocks for 0.30 s, 0.5% of the run"]),
        ([(LINK,)], [link]),
        ([(replace(LINK, gpu="GPU-0"), replace(LINK, gpu="GPU-1"))],
         [f"GPU GPU-{n}: {link}" for n in (0, 1)]),
        ([(one,) for one in replayed], ["in 2 of 2 runs: 12 replays on the PCIe link"]),
        ([(sign(SignKey.RESET_WAITS, "a change of the ECC mode waits for a reboot"),)], []),
        ([()], []),
    ]  # fmt: skip
    for runs, expected in cases:
        found_causes = causes(drop(runs=tuple(run_now(signs=signs) for signs in runs)), None, ())
        assert [cause.says for cause in found_causes if cause.rule == "seen"] == expected


UNET = {"stage_text_encoder": 0.05, "stage_unet": 0.779, "stage_vae": 0.1}


def staged(now_s: dict[str, float], *before_s: dict[str, float]) -> list[tuple[str, Strength]]:
    """Return the causes found in stages, in seconds a sample, of a test that got worse."""
    runs = tuple(run_now(metrics={**verdicts.run(1).metrics, **now_s}) for _ in range(2))
    baseline = record(*(kept(n, metrics=times) for n, times in enumerate(before_s or (UNET,))))
    found_causes = causes(drop(runs=runs), baseline, ())
    return [(cause.says, cause.strength) for cause in found_causes if cause.rule == "stages"]


def test_a_stage_that_takes_longer_is_named_with_those_that_do_not() -> None:
    slow = {**UNET, "stage_unet": 1.02}
    says = "unet takes 1.31x as long (779 ms → 1.02 s); text encoder and vae as before"
    assert staged(slow) == [(says, Strength.PLAUSIBLE)]
    for changed in (
        {**UNET, "stage_unet": 0.8},  # 3 %
        {**UNET, "stage_text_encoder": 0.06},  # 20 % of a stage, 1 % of all
        {"stage_other": 9.0},
        {},
    ):
        assert staged(changed) == []
    # As slow in one of the baseline's runs, and one that lacks the stage.
    assert staged(slow, UNET, slow, UNET) == []
    assert staged(slow, UNET, {}) == []
    faster = {**UNET, "stage_unet": 0.3}
    ((_, strength),) = staged(faster)
    assert strength is Strength.HINT


def test_all_stages_that_take_longer_are_a_hint_and_one_alone_is_a_cause() -> None:
    ((says, strength),) = staged({name: 1.5 * seconds for name, seconds in UNET.items()})
    assert says.startswith("text encoder takes 1.50x as long (50 ms → 75 ms) and unet takes")
    assert strength is Strength.HINT
    queue = {"stage_queue@1": 1e-5, "stage_queue@64": 0.031, "stage_prefill@64": 0.1}
    slow = {"stage_queue@1": 2e-5, "stage_queue@64": 0.384, "stage_prefill@64": 0.101}
    alone = ("at 1: queue takes 2.00x as long (10 µs → 20 µs)", Strength.PLAUSIBLE)
    assert staged(slow, queue)[0] == alone
    assert staged(slow, {**queue, "latency_p50@1": 0.2}) == [
        (
            "at 64: queue takes 12.4x as long (31 ms → 384 ms); prefill as before",
            Strength.PLAUSIBLE,
        ),
    ]


def test_stages_that_take_as_long_as_before_were_looked_at() -> None:
    runs = (run_now(metrics={**verdicts.run(1).metrics, **UNET}),)
    (*_, last) = causes(drop(runs=runs), record(kept(metrics=UNET)), ())

    assert last.rule == "none"
    assert "text encoder and unet and vae take as long as before" in last.says
    scored = replace(verdicts.ACC_DROP, runs=(run_now(metrics={"stage_unet": 9.0}),))
    found_causes = causes(scored, record(kept(metrics=UNET)), ())
    assert "stages" not in {cause.rule for cause in found_causes}


def of_length(verdict: Verdict, old_length: float, after: float) -> tuple[Cause, ...]:
    length = MetricVerdict(
        metric="tokens_per_sample",
        outcome=None,
        now=after,
        baseline=MetricBaseline(value=old_length),
    )
    return causes(replace(verdict, metrics=(*verdict.metrics, length)), None, ())


def test_another_length_of_answers_explains_a_change() -> None:
    """gen_len is a scorer's, and in no table of metrics of runs."""
    longer = ("answers are 11.9 % longer: 38.6 → 43.2 tokens/sample", Strength.STRONG)
    shorter = ("answers are 10.6 % shorter: 43.2 → 38.6 tokens/sample", Strength.HINT)
    scored = MetricVerdict(
        metric="gen_len", outcome=None, now=484.0, baseline=MetricBaseline(value=133.7)
    )
    fell = replace(drop(), kind=Kind.ACCURACY, outcome=Outcome.GATE_FAIL, metrics=(scored,))

    for old_length, after, expected in (
        (38.6, 43.2, [longer]),
        (43.2, 38.6, [shorter]),
        (100.0, 100.9, []),
    ):
        found_causes = of_length(drop(), old_length, after)
        assert [(c.says, c.strength) for c in found_causes if c.rule == "output"] == expected
    assert any("gen_len" in cause.says for cause in causes(fell, None, ()))
    better = texts_of(of_length(verdicts.IMPROVED, 118.0, 93.0))
    assert better == ["answers are 21.2 % shorter: 118.0 → 93.0 tokens/sample"]
    scores = texts_of(causes(verdicts.ACC_DROP, None, ()))
    assert scores == ["answers are 2.3 % longer: 294.4 → 301.2 tokens/sample"]


def test_clocks_and_power_cap_are_compared_with_the_baselines() -> None:
    usual = {"sm_mhz": 1980.0, "power_cap_share": 0.31}
    baseline = record(*(kept(n, state=usual) for n in range(2)))
    for clock, share, expected in (
        (1939.0, 0.58, [("SM clock −2.1 %, time at the power cap 31 % → 58 %", Strength.STRONG)]),
        (1981.0, 0.58, [("time at the power cap 31 % → 58 %", Strength.HINT)]),
        (2050.0, 0.31, [("SM clock +3.5 %, time at the power cap 31 % → 31 %", Strength.HINT)]),
        (1980.0, 0.35, []),
    ):
        run = run_now(state={"sm_mhz": clock, "power_cap_share": share}, signs=(cap(31.2, share),))
        found_causes = causes(drop(runs=(run,), source=SET), baseline, ())
        assert [
            (c.says, c.strength) for c in found_causes if c.rule in {"clocks", "seen"}
        ] == expected
    assert found_causes[-1].says.endswith("SM clock 1980 MHz, 1980 MHz in the baseline")


def watts(value: float, *, seconds: float = 60.0) -> dict[str, Any]:
    return {
        "metrics": {"throughput": 409.6, "samples_per_joule": 24_576 / (value * seconds)},
        "samples": 24_576,
        "duration_s": seconds,
    }


def test_mean_power_is_compared_with_the_baselines() -> None:
    """More power explains fewer samples per joule; less power goes with less work."""
    baseline = record(*(kept(n, **watts(690.0)) for n in range(4)))
    less = "mean power 601 W, 690 W in the baseline (−12.9 %)"
    for kind, after, expected in (
        (Kind.PERFORMANCE, 601.0, [(less, Strength.HINT)]),
        (Kind.EFFICIENCY, 601.0, [(less, Strength.HINT)]),
        (Kind.PERFORMANCE, 675.0, []),
        (Kind.ACCURACY, 601.0, []),
    ):
        found_causes = causes(drop(kind=kind, runs=(run_now(**watts(after)),)), baseline, ())
        assert [(c.says, c.strength) for c in found_causes if c.rule == "power"] == expected
    more = causes(drop(kind=Kind.EFFICIENCY, runs=(run_now(**watts(768.0)),)), baseline, ())
    assert [cause.strength for cause in more if cause.rule == "power"] == [Strength.STRONG]


def test_a_slower_machine_is_reported_also_within_its_spread() -> None:
    """Products of another library say nothing about the machine."""
    text = (
        "the machine's micro-benchmark: matrix product −{} % against the baseline, {} its "
        "normal variation of 3.61 %"
    )

    def of_control(speed: float, **library: float) -> list[tuple[str, Strength]]:
        usual_control = {"matmul_flops": 1e12, "matmul_library": 1.0}
        baseline = record(*(kept(n, control=usual_control) for n in range(4)))
        control = {**usual_control, "matmul_flops": speed * 1e12, **library}
        found_causes = causes(drop(runs=(run_now(control=control),)), baseline, ())
        return [(cause.says, cause.strength) for cause in found_causes if cause.rule == "control"]

    assert of_control(0.985) == [(text.format("1.5", "within"), Strength.HINT)]
    assert of_control(0.94) == [(text.format("6.0", "beyond"), Strength.STRONG)]
    assert of_control(0.998) == of_control(1.03) == []
    assert of_control(0.5, matmul_library=2.0) == []


def served(*now_and_before: dict[str, float], metrics: tuple[MetricVerdict, ...]) -> list[Cause]:
    now_served, old_server = now_and_before
    fell = drop(runs=(run_now(server=now_served),), metrics=metrics)
    baseline = record(kept(1, server=old_server), kept(2, server=old_server))
    return [cause for cause in causes(fell, baseline, ()) if cause.rule == "server"]


TTFT = metric("ttft_p90", Outcome.PERF_DROP, change=0.4)


def test_a_longer_queue_is_reported_with_the_metric_that_moved_most() -> None:
    """Work that a server is no longer spared explains most."""
    tokens = metric("tokens_per_second", Outcome.PERF_DROP, change=-0.1)
    better = metric("tpot_p50", None, change=-0.6)
    after, old_queue = {"waiting": 38.2, "running": 32.0}, {"waiting": 0.0, "running": 64.0}

    (cause,) = served(after, old_queue, metrics=(tokens, TTFT, better))

    assert cause.says == "p90 TTFT +40.0 %: waiting queue 0 → 38.2, running 64 → 32"
    assert cause.strength is Strength.PLAUSIBLE
    (plain,) = served(after, old_queue, metrics=(better,))
    assert plain.says == "the server: waiting queue 0 → 38.2, running 64 → 32"

    (hidden,) = served({"hidden_share": 0.75}, {"hidden_share": 0.0}, metrics=(TTFT,))
    assert hidden.says == "p90 TTFT +40.0 %: hidden tokens 0 % → 75 %"
    assert served({"hidden_share": 0.75}, {}, metrics=(TTFT,)) == []
    for name, new, old, strength in (
        ("draft_acceptance", 0.3, 0.7, Strength.STRONG),
        ("prefix_hit_share", 0.3, 0.7, Strength.STRONG),
        ("preemptions", 30.0, 0.0, Strength.PLAUSIBLE),
        ("kv_cache_use", 1.0, 0.5, Strength.HINT),
        ("waiting", 0.0, 9.0, Strength.HINT),
    ):
        found_causes = served({name: new}, {name: old}, metrics=(TTFT,))
        assert [cause.strength for cause in found_causes] == [strength]


def test_of_a_curve_the_points_that_moved_most_are_reported_and_an_unchanged_server_is_not() -> (
    None
):
    points = (1, 8, 64, 256)
    metrics = tuple(
        metric(f"tokens_per_second@{point}", Outcome.PERF_DROP, change=-point / 1000)
        for point in points
    )
    after, old = ({f"waiting@{point}": length for point in points} for length in (9.0, 0.0))

    found_causes = served(after, old, metrics=metrics)

    moved = [("256", "25.6"), ("64", "6.4"), ("8", "0.8")]
    assert [cause.says for cause in found_causes] == [
        f"tokens/s at {point} −{change} %: waiting queue 0 → 9" for point, change in moved
    ]

    run, stored = run_now(server={"waiting": 1.0}), record(kept(1, server={"waiting": 0.5}))

    assert texts_of(causes(drop(runs=(run,), source=None), stored, ())) == [
        "no cause found: the server's queue, cache and drafts are as in the baseline"
    ]
    assert served({}, {"waiting": 0.5}, metrics=(TTFT,)) == []


def test_without_evidence_the_examined_facts_are_listed() -> None:
    baseline = record(
        *(kept(n, **watts(690.0), control={"copy_bytes_per_s": 1e12}) for n in range(4))
    )
    length = MetricVerdict(
        metric="tokens_per_sample", outcome=None, now=38.7, baseline=MetricBaseline(value=38.6)
    )
    run = run_now(
        **watts(688.0),
        control={"copy_bytes_per_s": 1.001e12},
        signs=(sign(SignKey.RESET_WAITS, "ECC waits"),),
    )
    verdict = drop(runs=(run,), metrics=(*DROP.metrics, length), source=SET)

    assert texts_of(causes(verdict, baseline, ())) == [
        "no cause found: engine, weights, options and data are as in the baseline; 38.7 "
        "tokens/sample, 38.6 in the baseline; mean power 688 W, 690 W in the baseline (−0.3 "
        "%); the machine's micro-benchmark: copy +0.1 % against the baseline, within its "
        "normal variation of 3.61 %"
    ]
    assert texts_of(causes(drop(source=None), None, ())) == [
        "no cause found: there is nothing to compare with"
    ]


def test_the_handicap_comes_first_and_hints_alone_are_no_cause() -> None:
    others = [sibling("bert", "onnxruntime", 0.0)]
    missed = (run_now(limit_missed=True), run_now(), run_now(limit_missed=True))

    first, second = causes(drop("engine.version 1 → 2", handicap=0.5), None, ())
    hint, none = causes(drop(source=SET), None, others)

    assert first.says == "the handicap of 50 %: work was slowed on purpose"
    assert (first.strength, second.rule) == (Strength.CERTAIN, "engine")
    assert hint.says == "only this case: 0 of 1 other cases of onnxruntime got worse"
    assert (hint.strength, none.strength) == (Strength.HINT, Strength.NONE)
    assert none.says == "no cause found: engine, weights, options and data are as in the baseline"
    unsure = drop(source=SET, unknown=("weights: not known now", "inputs: not known now"))
    assert texts_of(causes(unsure, None, ())) == [
        "no cause found: weights: not known now; inputs: not known now"
    ]
    assert texts_of(
        causes(
            replace(unsure, baseline=replace(unsure.baseline, changed=("engine.version 1 → 2",))),
            None,
            (),
        )
    ) == ["engine.version 1 → 2 since the baseline"]
    assert texts_of(causes(drop(OTHER, source=SET), None, ()))[1:] == [
        "no cause found: the changes listed below explain little"
    ]
    assert texts_of(causes(drop(runs=missed), None, ())) == [
        "LoadGen's latency limit was missed in 2 of 3 runs at 25000/s"
    ]


def test_only_changes_of_metrics_are_explained() -> None:
    """Also a drop that is INVALID because the machine is slow: its metrics fell."""
    explained = {verdict.outcome.name for verdict in ALL if causes(verdict, None, ALL)}
    baseline = record(*(kept(n, control={"copy_bytes_per_s": 1e12}) for n in range(4)))
    slow = drop(outcome=Outcome.INVALID, runs=(run_now(control={"copy_bytes_per_s": 9e11}),))

    (cause,) = causes(slow, baseline, ())

    names = "PERF_DROP POWER_DROP SUSPECT ACC_DROP GATE_FAIL IMPROVED EXPECTED PROVISIONAL"
    assert explained == set(names.split())
    assert "copy −10.0 % against the baseline, beyond its normal" in cause.says


def of_names(names: str, values: st.SearchStrategy[float]) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(names.split()), values)


numbers = st.floats(min_value=-1e300, max_value=1e300)
positive = st.floats(min_value=1e-300, max_value=1e300)
changes = ["engine.version 1 → 2", "machine.driver 1 → 2", f"dataset {DIGEST} → {DIGEST}"]
changes += [LOADED, OTHER, "inputs.first 1 → 2"]
changes += ['options {"a": [1]} → {"b": {}}', "options {} → {}"]
texts = st.text(max_size=30) | st.sampled_from(changes)
metrics = st.builds(
    MetricVerdict,
    metric=st.sampled_from(["throughput", "latency_p50", "tokens_per_sample"]),
    outcome=st.none() | st.sampled_from(Outcome),
    now=st.none() | positive,
    baseline=st.builds(MetricBaseline, value=st.none() | positive),
    change=st.none() | numbers,
)
signs = st.builds(
    Sign,
    key=st.sampled_from(SignKey),
    text=texts.map("for 1 s: {}".format),
    gpu=texts,
    seconds=st.none() | st.floats(0, 100),
    share=st.none() | st.floats(0, 1),
)
measured: dict[str, st.SearchStrategy[Any]] = {
    "control": of_names("matmul_flops copy_bytes_per_s matmul_library other", positive),
    "state": of_names("sm_mhz power_cap_share temperature_c", st.floats(0, 1e300)),
    "server": of_names("waiting waiting@8 prefix_hit_share running@0.5 other", st.floats(0, 1e30)),
    "metrics": of_names("throughput samples_per_joule", positive),
}
runs = st.builds(
    run_now, signs=st.lists(signs, max_size=3).map(tuple), limit_missed=st.booleans(), **measured
)
baselines = st.none() | st.lists(st.builds(kept, **measured), min_size=1, max_size=4).map(
    lambda runs: record(*runs)
)
found_verdicts = st.builds(
    lambda base, judged, workload, engine, changed, **fields: replace(
        base,
        baseline=replace(base.baseline, changed=changed),
        metrics=judged or base.metrics,
        case=replace(base.case, workload=workload, engine=engine),
        **fields,
    ),
    st.sampled_from(ALL),
    st.lists(metrics, max_size=3).map(tuple),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["x", "y"]),
    changed=st.lists(texts, max_size=4).map(tuple),
    notes=st.lists(texts, max_size=3).map(tuple),
    runs=st.lists(runs, max_size=3).map(tuple),
)


@settings(max_examples=30)
@given(verdict=found_verdicts, baseline=baselines, siblings=st.lists(found_verdicts, max_size=6))
def test_no_rule_ever_raises_and_every_cause_has_its_evidence(
    verdict: Verdict, baseline: Record | None, siblings: list[Verdict]
) -> None:
    """Each sentence holds a number or a name that stands in the verdict, the strongest first."""
    found_causes = causes(verdict, baseline, siblings)

    named = {text.split(" ", 1)[0] for text in verdict.baseline.changed} | {verdict.case.engine}
    for cause in found_causes:
        if cause.strength is not Strength.NONE:
            assert re.search(r"\d", cause.says) or any(name in cause.says for name in named)
    strengths = [cause.strength for cause in found_causes]
    assert strengths == sorted(strengths, reverse=True)
    nothing = all(strength <= Strength.HINT for strength in strengths)
    assert strengths.count(Strength.NONE) == (1 if found_causes and nothing else 0)
