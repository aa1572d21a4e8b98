"""What a suite's cases ask of LoadGen, of the machine and of the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.job import Factory, LoadGenSettings, Seeds
from pytest_mlperf.core.rulings.gate import GateWindow
from pytest_mlperf.suite.plan import Planned, in_profile, plan_suite
from pytest_mlperf.suite.resolve import built_scorer, dataset_of, model_of, scorer_of, settings_of
from tests.jobs import job_of
from tests.suite.round_tables import SEEDS
from tests.suite.texts import with_


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NOT_SET", raising=False)
    return tmp_path / "s.mlperf.toml"


def plan(file: Path, *changes: tuple[str, str], more: str = "") -> list[Planned]:
    file.write_text(with_(*changes, more=more), "utf-8")
    return plan_suite(file)


def of_scenario(file: Path, scenario: str, workload: str = "resnet50", **changes: str) -> Planned:
    """Return the one case of a scenario; `changes` are added to its table."""
    lines = "".join(f"\n{key} = {value}" for key, value in changes.items())
    (planned,) = plan(
        file,
        ('"mine"', f'"{workload}"'),
        ('"Offline"\ntarget_qps = 100', f'"{scenario}"{lines}'),
    )
    return planned


def seeds(round_name: str) -> Seeds:
    qsl, sample_index, schedule = SEEDS[round_name]
    return Seeds(qsl=qsl, sample_index=sample_index, schedule=schedule)


def quick(scenario: str, **changes: Any) -> LoadGenSettings:
    fields = {
        "scenario": scenario,
        "seeds": seeds("v4.1"),
        "target_qps": 50.0,
        "min_duration_ms": 1,
        "min_query_count": 64,
        "fixed_work_s": 60.0,
        "performance_samples": 1024,
    }
    return LoadGenSettings(**{**fields, **changes})


def official(scenario: str, **changes: Any) -> LoadGenSettings:
    return quick(
        scenario,
        **{"min_duration_ms": 600_000, "min_query_count": 100, "fixed_work_s": None, **changes},
    )


P90_OF_TOKENS = '{ ttft_p90 = { max_rise = "5%" } }'
P99 = '{ latency_p99 = { max_rise = "5%" } }'
FIND = '{ maximise = "target_qps", subject_to = "latency_p90 < 9 ms" }'
SERVER = {"min_query_count": 1000, "latency_limit_ns": 15_000_000}
SINGLE = {"latency_percentile": 0.9}

QUICK: tuple[tuple[str, dict[str, str], dict[str, Any]], ...] = (
    ("Offline", {}, {}),
    ("Offline", {"min_duration": '"6s"'}, {"fixed_work_s": 6.0}),
    ("Offline", {"min_duration": '"250ms"'}, {"fixed_work_s": 0.25}),
    ("Offline", {"min_duration": '"1.5 min"'}, {"fixed_work_s": 90.0}),
    ("Offline", {"min_query_count": "7"}, {"min_query_count": 7}),
    ("Offline", {"latency_limit": '"15ms"'}, {}),
    ("Server", {}, SERVER),
    ("Server", {"latency_limit": '"7.5ms"'}, {**SERVER, "latency_limit_ns": 7_500_000}),
    ("Server", {"min_query_count": "100"}, {**SERVER, "min_query_count": 100}),
    ("Server", {"find": FIND}, {**SERVER, "min_query_count": 662}),
    ("SingleStream", {}, SINGLE),
    ("SingleStream", {"limits": P90_OF_TOKENS}, {**SINGLE, "min_query_count": 100}),
    ("SingleStream", {"limits": P99}, {**SINGLE, "min_query_count": 1000}),
    ("MultiStream", {}, {"min_query_count": 1000}),
    ("MultiStream", {"min_query_count": "100"}, {"min_query_count": 100}),
)


def test_loadgen_gets_the_settings_of_a_quick_scenario(file: Path) -> None:
    """A suite may shorten a run; it has the queries that its gated metrics need."""
    wrong = [
        (scenario, changes, told)
        for scenario, changes, expected in QUICK
        for told in [settings_of(of_scenario(file, scenario, **changes), target_qps=50.0)]
        if told != quick(scenario, **expected)
    ]

    assert wrong == []


def test_limits_of_a_curve_change_nothing_that_is_asked_for(file: Path) -> None:
    """Nor do those of the whole suite anywhere: only a scenario that gates more needs more."""
    for scenario, limits in (
        ("Concurrency", '{ "tpot_p90@16" = { max_rise = "9%" } }'),
        ("Concurrency", '{ "ttft_p99@4" = { max_rise = "9%" } }'),
        ("OpenLoop", '{ "latency_p99@4" = { max_rise = "9%" } }'),
    ):
        plain, limited = (
            settings_of(of_scenario(file, scenario, points="[4, 16]", **changes))
            for changes in ({}, {"limits": limits})
        )
        assert plain == limited


def test_a_suite_cannot_shorten_an_official_run(file: Path) -> None:
    expected: dict[str, dict[str, Any]] = {
        "Offline": {"min_query_count": 24_576},
        "Server": {"latency_limit_ns": 15_000_000},
        "SingleStream": {"latency_percentile": 0.9},
        "MultiStream": {"min_query_count": 662},
    }
    for scenario, short in product(expected, ("", 'min_duration = "1s"\nmin_query_count = 1')):
        (planned,) = plan(
            file,
            ('"mine"', '"resnet50"'),
            ('"quick"', '"official"'),
            ('"Offline"\ntarget_qps = 100', f'"{scenario}"\n{short}'),
        )
        assert settings_of(planned, target_qps=50.0) == official(scenario, **expected[scenario])
        assert planned.seconds_per_run == 600


def tokens(**limits_ns: int) -> dict[str, Any]:
    return {"tokens": True, "performance_samples": 24_576, "min_query_count": 1000, **limits_ns}


def test_language_models_are_timed_by_their_tokens(file: Path) -> None:
    """A suite's own limits come first."""
    slow = tokens(ttft_limit_ns=2_000_000_000, tpot_limit_ns=200_000_000)
    fast = tokens(ttft_limit_ns=450_000_000, tpot_limit_ns=40_000_000)
    for round_name, scenario, loadgen, expected in (
        ("v4.1", "Offline", "Offline", {**tokens(), "min_query_count": 64}),
        ("v4.1", "Server", "Server", slow),
        ("v5.1", "Interactive", "Server", fast),
    ):
        (planned,) = plan(
            file,
            ('"v4.1"', f'"{round_name}"'),
            ('"mine"', '"llama2-70b-99.9"'),
            ('"Offline"\ntarget_qps = 100', f'"{scenario}"'),
        )
        quick_settings = quick(loadgen, seeds=seeds(round_name), **expected)
        assert settings_of(planned, target_qps=50.0) == quick_settings
    planned = of_scenario(file, "Server", "llama2-70b-99", ttft_limit='"1s"', tpot_limit='"50ms"')

    settings = settings_of(planned, target_qps=50.0)
    assert (settings.ttft_limit_ns, settings.tpot_limit_ns) == (1_000_000_000, 50_000_000)
    assert settings.latency_limit_ns is None
    assert set(planned.limits) == {"ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"}


def test_the_margin_is_a_share_of_the_baselines_score_or_points_or_the_rounds(file: Path) -> None:
    for text, score, points in (
        ("", 44.4, 0.222),
        ('accuracy = { margin = "1 %" }', 44.4, 0.444),
        ('accuracy = { margin = "0.25 points" }', 44.4, 0.25),
        ('accuracy = { reference = "null" }', 20.0, 0.1),
    ):
        (planned,) = plan(file, more=text + "\n")
        assert planned.margin("top1").points(score) == pytest.approx(points)
    for workload, metric, points in (
        ("retinanet", "map", 0.5),
        ("dlrm-v2-99", "auc", 0.05),
        ("stable-diffusion-xl", "fid", 1.0),
        ("stable-diffusion-xl", "clip", 0.1),
        ("resnet50", "top1", 0.5),
    ):
        scored = ('"mine"', f'"{workload}"\nscorer = {{ use = "top1" }}')
        (official,) = plan(file, scored)
        (own_margin,) = plan(file, scored, more='accuracy = { margin = "3 points" }\n')
        assert official.margin(metric).points(100.0) == pytest.approx(points)
        assert own_margin.margin(metric).points(100.0) == 3.0


TWO = """
[[engines]]
use = "null"
precision = "int8"
"""


def test_a_reference_entry_is_found_by_name_or_name_and_precision(file: Path) -> None:
    for named in ("null-fp32", "a-fp32", "a"):
        changes = [('use = "null"', 'use = "null"\nname = "a"')] if named[0] == "a" else []
        first, second = plan(file, *changes, more=f'accuracy = {{ reference = "{named}" }}\n{TWO}')
        assert first.accuracy_reference is second.accuracy_reference is first.engine


def test_the_seeds_are_those_of_the_suites_round(file: Path) -> None:
    """A workload of one's own keeps up to 1024 samples in memory."""
    for workload, round_name in product(("mine", "resnet50"), SEEDS):
        (planned,) = plan(file, ('"v4.1"', f'"{round_name}"'), ('"mine"', f'"{workload}"'))
        assert settings_of(planned, target_qps=None).seeds == seeds(round_name)
    (planned,) = plan(file)
    assert settings_of(planned) == quick("Offline", target_qps=None, performance_samples=1024)


USUAL = {"latency_p50": 0.05, "latency_p99": 0.10}


def test_limits_are_those_of_the_metrics_that_a_scenario_gates(file: Path) -> None:
    """A scenario adds metrics and overrides limits for itself."""
    both = 'throughput = { max_drop = "5%" }\nlatency_p99 = { max_rise = "150%" }'
    for scenario, changes, expected in (
        ("Offline", "", {"throughput": 0.03}),
        ("Server", "", USUAL),
        ("SingleStream", "", {"latency_p90": 0.03}),
        ("MultiStream", "", {"latency_p99": 0.10}),
        ("Offline", 'throughput = { max_drop = "5%" }', {"throughput": 0.05}),
        ("Offline", 'latency_p99 = { max_rise = "5%" }', {"throughput": 0.03}),
        ("Server", both, {"latency_p50": 0.05, "latency_p99": 1.5}),
        ("SingleStream", 'samples_per_joule = { max_drop = "5%" }', {"latency_p90": 0.03}),
    ):
        (planned,) = plan(
            file,
            ('"mine"', '"resnet50"'),
            ('"Offline"\ntarget_qps = 100', f'"{scenario}"'),
            ('throughput = { max_drop = "3%" }', changes),
        )
        assert planned.limits == pytest.approx(expected)
    tokens = '{ tokens_per_second = { max_drop = "2.5 %" } }'
    for scenario, limits, expected in (
        ("Offline", tokens, {"throughput": 0.03, "tokens_per_second": 0.025}),
        ("Offline", '{ throughput = { max_drop = "1%" } }', {"throughput": 0.01}),
        ("Server", '{ latency_p90 = { max_rise = "4%" } }', {**USUAL, "latency_p90": 0.04}),
    ):
        assert of_scenario(file, scenario, limits=limits).limits == pytest.approx(expected)


def test_a_case_has_the_tests_that_it_can_answer(file: Path) -> None:
    both = ("accuracy", "performance")
    cases: list[tuple[str, str, tuple[str, ...]]] = [
        ('"mine"', "", ("performance",)),
        ('"mine"\nscorer = { use = "top1" }', "", both),
        ('"resnet50"', "", both),
        ('"mine"\ntwin_of = "resnet50"', "", both),
        ('"mine"', 'samples_per_joule = { max_drop = "5%" }', ("performance", "efficiency")),
    ]
    for name, more, kinds in cases:
        (planned,) = plan(file, ('"mine"', name), more=more)
        assert planned.kinds == kinds


OWN = '"mine"\nscorer = { use = "top1" }\nreference = { top1 = 50.0 }\ntarget = "98%"'


def test_mlperfs_gate_is_for_mlperfs_workloads_in_every_profile(file: Path) -> None:
    for name, profile, low in (
        ('"resnet50"', "official", 76.46 * 0.99),
        ('"resnet50"', "quick", 76.46 * 0.99),
        ('"mine"', "official", None),
        (OWN, "quick", 50.0 * 0.98),
        (OWN, "official", 50.0 * 0.98),
        (f'{OWN}\ntwin_of = "resnet50"', "official", 50.0 * 0.98),
        ('"mine"\ntwin_of = "resnet50"', "official", None),
    ):
        (planned,) = plan(file, ('"mine"', name), ('"quick"', f'"{profile}"'))
        bounds = planned.bounds(())
        assert (bounds is None) == (low is None)
        assert bounds is None or bounds["top1"].low == pytest.approx(low)
        assert bounds is None or bounds["top1"].high is None


def test_the_target_is_the_one_that_the_name_says(file: Path) -> None:
    """A twin has the round's windows as shares of its own reference."""
    changes = [('"v4.1"', '"v4.1"'), ('"quick"', '"official"')]

    def bounds(name: str) -> Mapping[str, GateWindow]:
        (planned,) = plan(file, ('"mine"', f'"{name}"'), *changes)
        bounds_of_score = planned.bounds(())
        assert bounds_of_score is not None
        return bounds_of_score

    assert bounds("bert-99")["f1"].low == pytest.approx(89.96526)
    assert bounds("bert-99.9")["f1"].low == pytest.approx(90.783126)
    window = bounds("llama2-70b-99.9")["tokens_per_sample"]
    assert (window.low, window.high) == pytest.approx((265.005, 323.895))
    (planned,) = plan(file, ('"mine"', SDXL_TWIN))
    windows = planned.bounds(("own",))
    assert windows is not None
    assert windows["clip"].low == pytest.approx(20 * 31.68631873 / 31.7498, rel=1e-3)
    assert windows["fid"].high == pytest.approx(10 * 1.02, rel=1e-4)
    assert windows["own"].low is None
    assert windows["own"].high == pytest.approx(4 * 1.01)


SDXL_TWIN = """"mine"
twin_of = "stable-diffusion-xl"
scorer = { use = "own:Scorer" }
reference = { clip = 20.0, fid = 10.0, own = 4.0 }"""


def test_mlperfs_own_workload_needs_mlperfs_own_number_of_samples(file: Path) -> None:
    """The suite's digest is asked of the data set."""
    for name, profile, options, samples in (
        ('"resnet50"', "quick", "", 50_000),
        ('"resnet50"', "official", "", 50_000),
        ('"resnet50"', "quick", ", count = 100", None),
        ('"resnet50"', "official", ", count = 100", 50_000),
        ('"mine"\ntwin_of = "resnet50"', "official", "", None),
        ('"mine"', "official", "", None),
    ):
        (planned,) = plan(
            file,
            ('"mine"', name),
            ('"synthetic", samples = 8', f'"imagenet", path = "x"{options}'),
            ('"quick"', f'"{profile}"'),
        )
        assert planned.data.expected().samples == samples
    digest = "0123456789abcdef" * 4
    (planned,) = plan(file, ("samples = 8", f'digest = "{digest}"'))
    assert planned.data.expected().digest == digest
    assert "digest" not in dataset_of(planned).options


def test_cases_are_engines_by_accelerators_by_scenarios_in_the_files_order(file: Path) -> None:
    """Engines written as one array stand at its line."""
    planned = plan(
        file,
        ('["cpu"]', '["cpu", "8xH100"]'),
        (
            "[limits]",
            '[[engines]]\nuse = "null"\nname = "ort-2"\nprecision = "int8"\n'
            '\n[[scenarios]]\nname = "SingleStream"\n\n[limits]',
        ),
    )
    assert [(p.case.id, p.line) for p in planned] == [
        ("mine-Offline-null-fp32-cpu", 9),
        ("mine-SingleStream-null-fp32-cpu", 9),
        ("mine-Offline-null-fp32-8xH100", 9),
        ("mine-SingleStream-null-fp32-8xH100", 9),
        ("mine-Offline-ort-2-int8-cpu", 18),
        ("mine-SingleStream-ort-2-int8-cpu", 18),
    ]
    assert len({id(p.suite) for p in planned}) == 1
    file.write_text(
        'schema = 1\nround = "v4.1"\nscenarios = [{ name = "Offline" }]\nengines = [\n'
        '  { use = "null" },\n  { use = "null", precision = "fp8" },\n]\n'
        '[workload]\nname = "mine"\n',
        "utf-8",
    )
    assert [(p.case.precision, p.line) for p in plan_suite(file)] == [("fp32", 4), ("fp8", 4)]


def test_the_offered_rate_is_one_number_or_one_per_accelerator(file: Path) -> None:
    both = ('["cpu"]', '["cpu", "H200"]')
    for rate, cpu, h200 in (
        ("100", 100.0, 100.0),
        ("{ H200 = 13.5 }", None, 13.5),
        ("{ cpu = 1, H200 = 2 }", 1.0, 2.0),
    ):
        on_cpu, on_h200 = plan(file, both, ("target_qps = 100", f"target_qps = {rate}"))
        assert on_cpu.scenario.rate_on("cpu") == cpu
        assert on_h200.scenario.rate_on("H200") == h200


WITH_PATHS = (
    'name = "mine"\ndataset = { use = "synthetic", samples = 8 }',
    'name = "mine"\nmodel = "${MODELS}/m.onnx"\n'
    'dataset = { use = "synthetic", samples = 8, path = "data" }',
)


def test_paths_are_relative_to_the_suite_and_variables_are_expanded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "data").mkdir()
    (file.parent / "models").mkdir()
    (file.parent / "models" / "m.onnx").write_bytes(b"x")
    monkeypatch.setenv("MODELS", "models")
    monkeypatch.setenv("LATENCY", "0.5")
    monkeypatch.chdir("/")

    own_engine = ('use = "null"', 'use = "own:Engine"')
    (planned,) = plan(
        file, WITH_PATHS, own_engine, ("0.001", '["${LATENCY}", { a = "x${LATENCY}" }]')
    )
    job = job_of(planned)
    engine, dataset = job.engine, job.dataset

    assert job.model == str((file.parent / "models" / "m.onnx").resolve())
    assert engine == Factory(
        target="own:Engine",
        options={"latency_s": ["0.5", {"a": "x0.5"}]},
    )
    assert dataset == Factory(
        target="pytest_mlperf.builtin.synthetic:SyntheticDataset",
        options={"samples": 8, "path": str((file.parent / "data").resolve())},
    )
    assert planned.engine.options == {"latency_s": ["${LATENCY}", {"a": "x${LATENCY}"}]}


def test_missing_files_are_unavailable_and_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that goes away after collection is an error."""
    monkeypatch.delenv("MODELS", raising=False)
    top1 = '"mine"\nscorer = { use = "top1", dtype = "${NOT_SET}" }'
    clip = '{ use = "clip_fid", clip = "a/clip", inception = "b.pth", statistics = "c.npz" }'

    def scorer(planned: Planned) -> object:
        return scorer_of(planned, None)

    cases: tuple[tuple[tuple[str, str], Callable[[Planned], object], str], ...] = (
        (WITH_PATHS, model_of, r":7: \$\{MODELS\} is not set; set it so that"),
        (
            WITH_PATHS,
            dataset_of,
            r":8: the dataset data is not here \(looked at .+/data\); correct",
        ),
        (("samples = 8", 'seed = "${NOT_SET}"'), dataset_of, r":7: dataset: \$\{NOT_SET\} is not"),
        (('"mine"', top1), scorer, r":7: scorer: \$\{NOT_SET\} is not set"),
        (('"mine"', f'"mine"\nscorer = {clip}'), scorer, "a/clip"),
    )
    for change, look, message in cases:
        (planned,) = plan(file, change)
        with pytest.raises(UnavailableError, match=message):
            look(planned)
    monkeypatch.setenv("LATENCY", "0.5")
    (planned,) = plan(file, ('use = "null"', 'use = "own:Engine"'), ("0.001", '"${LATENCY}"'))
    monkeypatch.delenv("LATENCY")
    with pytest.raises(SuiteError, match=r"\$\{LATENCY\} is not set"):
        job_of(planned)


def test_a_path_of_a_scorer_is_near_the_suite_and_variables_are_expanded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "deep").mkdir()
    (file.parent / "deep/c.npz").touch()
    (file.parent / "int64").touch()
    monkeypatch.setenv("TOKENIZER", "/models/tokenizer")
    options = 'a = "deep/c.npz", b = "gone/c.npz", c = "int64", d = 3, e = "evaluate:deep"'
    options += ', f = "${TOKENIZER}"'
    (planned,) = plan(file, ('"mine"', f'"mine"\nscorer = {{ use = "own:Scorer", {options} }}'))

    built, kept = built_scorer(planned), planned.scorer
    assert built is not None
    assert kept is not None
    assert built.options == {
        "a": str(file.parent / "deep/c.npz"),
        "b": "gone/c.npz",
        "c": "int64",
        "d": 3,
        "e": f"evaluate:{file.parent / 'deep'}",
        "f": "/models/tokenizer",
    }
    assert (kept.options["e"], kept.options["f"]) == ("evaluate:deep", "${TOKENIZER}")


def test_code_of_ones_own_is_named_and_not_imported(file: Path) -> None:
    (planned,) = plan(
        file,
        ('use = "null"', 'use = "no.such.package:Engine"\nname = "own"'),
        ('use = "synthetic"', 'use = "no.such.package:data"'),
        ("latency_s = 0.001", "anything = true"),
    )

    job = job_of(planned)
    engine, dataset = job.engine, job.dataset

    assert engine == Factory(target="no.such.package:Engine", options={"anything": True})
    assert dataset == Factory(target="no.such.package:data", options={"samples": 8})


LACKING = "performance only: no scorer for the answers of mine; a wrong model wo"
UNSCORED = "performance only: there is no scorer for e2e-rag-qna of v"


def test_a_language_model_that_nothing_scores_says_so(file: Path) -> None:
    for more, gap in (
        ("", ""),
        ("\ntokens = true", LACKING),
        ('\ntokens = true\nscorer = { use = "rouge" }', ""),
    ):
        (planned,) = plan(file, ('"mine"', f'"mine"{more}'))
        assert planned.suite.scoring_gap.startswith(gap)
        assert bool(planned.suite.scoring_gap) is bool(gap)


def refused_as_official(file: Path, planned: Planned, match: str) -> None:
    """A suite with a gap is official neither by the command line nor by its own profile."""
    with pytest.raises(SuiteError, match=match):
        in_profile([planned], "official")
    text = file.read_text("utf-8").replace('"quick"', '"official"')
    file.write_text(text.replace("target_qps = 100\n", "target_qps = 1000\n"), "utf-8")
    with pytest.raises(SuiteError, match=match):
        plan_suite(file)


def test_deviations_from_the_round_are_noted_and_never_official(file: Path) -> None:
    for round_name, name, more, says in (
        ("v6.1", "qwen3-vl-235b-a22b", "", True),
        ("v6.1", "qwen3.6-27b", "", True),
        ("v6.0", "qwen3-vl-235b-a22b", "", False),
        ("v6.1", "whisper", "", False),
        ("v6.1", "tiny", '\ntwin_of = "qwen3.6-27b"', False),
        ("v6.1", "mine", "", False),
    ):
        scenario = "SingleStream" if name == "qwen3.6-27b" else "Offline"
        (planned,) = plan(
            file,
            ('"v4.1"', f'"{round_name}"'),
            ('"mine"', f'"{name}"{more}'),
            ('name = "Offline"\ntarget_qps = 100', f'name = "{scenario}"'),
        )
        gap = f"not the round's harness: {name} of v6.1 is run by MLPerf Endpoints, here by"
        assert planned.suite.harness_gap.startswith(gap if says else "")
        assert bool(planned.suite.harness_gap) is says
        if says:
            refused_as_official(file, planned, "needs the harness of its round; not the round's")


def test_a_rounds_workload_that_nothing_scores_says_so_and_is_never_official(file: Path) -> None:
    for name, more, gap in (
        ("e2e-rag-qna", "", f"{UNSCORED}6.1, which MLPerf"),
        ("resnet50", "", ""),
        ("mine", "", ""),
        ("e2e-rag-qna", '\nscorer = { use = "top1" }', ""),
        ("tiny", '\ntwin_of = "e2e-rag-qna"', UNSCORED),
    ):
        (planned,) = plan(file, ('"v4.1"', '"v6.1"'), ('"mine"', f'"{name}"{more}'))
        assert planned.suite.scoring_gap.startswith(gap)
        assert bool(planned.suite.scoring_gap) is bool(gap)
        assert ("accuracy" in planned.kinds) is (not gap and name != "mine")
        if gap:
            refused_as_official(file, planned, "an official result needs its accuracy; performance")
