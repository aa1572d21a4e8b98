"""`pytest-mlperf round`: the rules of a round, for readers and for programs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pytest_mlperf.addons.official.commands.round import ADAPTERS
from pytest_mlperf.registry import registered
from pytest_mlperf.rounds import ROUNDS, load_round
from pytest_mlperf.suite.plan import plan_suite
from tests.cli.lab import ROOT
from tests.cli.text import Say, differing, page


def test_a_round_or_a_workload_is_a_page_with_every_figure(say: Say) -> None:
    """A name with a target shows that target: in v4.1 the edge had no bert-99.9."""
    for words in ("round v4.1", "round v5.0 llama2-70b"):
        assert say(*words.split()) == (0, page(f"{words.replace(' ', '_')}.txt"))
    output = say.ends(0, "round", "v4.1", "bert-99.9")
    assert output.startswith("bert-99.9 of MLPerf Inference v4.1: BERT-large\n")
    assert "\nnames     bert, bert-99, bert-99.9\nchecker   bert-99.9\n" in output
    assert "\nsystems   datacenter Offline, Server\n" in output
    assert "f1    99.9 %     90.874  90.783126" in output
    assert "89.96526" not in output


def test_unusual_rules_are_explained_in_words(say: Say) -> None:
    rows: list[tuple[str, tuple[str, ...]]] = [
        ("v6.1 dlrm-v3", ("normalized_entropy: lower is better", "0.86773687")),
        ("v6.1 stable-diffusion-xl", ("fid: lower is better; scores within a window pass",)),
        ("v6.1 e2e-rag-qna", ("accuracy: the gate is a fixed score", "Offline 824 0 s")),
        ("v6.1 qwen3.6-27b", ("harness MLPerf Endpoints",)),
        ("v6.1", ("measured by MLPerf Endpoints: qwen3-vl-235b-a22b, qwen3.6-27b",)),
        ("v6.0 qwen3-vl-235b-a22b", ("harness LoadGen",)),
        ("v6.1 gpt-oss-120b", ("harness LoadGen or MLPerf Endpoints",)),
        ("v6.1 qwen3-vl-235b-a22b", ("8,000 in Interactive", "Interactive: f1")),
        ("v6.1", ("Interactive: f1 ≥ 0.779922",)),
        ("v6.1 gpt-oss-120b", ("at most 110 % of the reference passes", "at most 32,768")),
        ("v4.1 gptj", ("at least 90 % of the reference passes", "counted as 69 per sample")),
        ("v4.1 bert", ("edge Offline, SingleStream (only 99 %)",)),
        ("v6.0 retinanet", ("systems none: MLCommons' checker lists it",)),
        ("v5.1 whisper", ("dev-other.tar.gz md5:c8d0bcc9cca99d4f8b62fcc847357931",)),
        ("v5.1 llama3.1-8b", ("llama3_1-8b of MLPerf Inference", "scorer rouge")),
        (
            "v6.1 e2e-rag-qna",
            ("scorer judged (you supply the tool or judge model); MLPerf's gate is not checked",),
        ),
        ("v6.0 wan-2.2-t2v-a14b", ("scorer vbench (you supply the tool",)),
        (
            "v6.1 gpt-oss-120b",
            (
                "answers sampled at temperature 1,",
                "the tiny model of this workload samples at temp",
            ),
        ),
        (
            "v6.1 qwen3-vl-235b-a22b",
            ("temperature 0.7,", "the tiny model of this workload uses greedy decoding"),
        ),
        ("v5.1 deepseek-r1", ("options graded scorer deepseek_r1",)),
        ("v4.1 mixtral-8x7b", ("adapter mixtral: pytest-mlperf options mixtral scorer",)),
        ("v5.1 pointpainting", ("SingleStream 100 10 min - 99.9",)),
        ("v6.1 deepseek-r1", ("datacenter Offline, at least one of Server, Interactive",)),
        ("v6.0 deepseek-r1", ("datacenter Offline, optional Server, Interactive",)),
        ("v6.1 yolo", ("MultiStream 662 x 8 10 min - 99",)),
    ]

    assert differing(say, ((("round", *line.split()), 0, texts) for line, texts in rows)) == []


def test_every_figure_of_every_workload_is_shown(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tables fit the terminal."""
    failures: list[tuple[str, str, list[str]]] = []
    for name, columns in zip(ROUNDS, (80, 120, 80, 80, 120), strict=True):
        monkeypatch.setenv("COLUMNS", str(columns))
        workloads = load_round(name).workloads
        pages = {key: say.ends(0, "round", name, *key.split()) for key in ("", *workloads)}
        for workload, page_text in pages.items():
            lines = page_text.partition("checksums of data files")[0].splitlines()
            failures.append((name, workload, [line for line in lines if len(line) > columns]))
        for workload, facts in workloads.items():
            page_text = pages[workload]
            figures = [facts.dataset_samples, facts.performance_samples, facts.accuracy_samples]
            figures += [scenario.min_query_count for scenario in facts.scenarios.values()]
            for metric in facts.metrics.values():
                figures.append(metric.reference)  # type: ignore[arg-type]
                for target in facts.targets:
                    figures += metric.bounds(target)  # type: ignore[arg-type]
            expected = {f"{figure:.10g}" for figure in figures if figure is not None}
            expected |= {metric.checker for metric in facts.metrics.values()}
            expected |= {scenario.result for scenario in facts.scenarios.values()}
            missing = sorted(expected - {*page_text.replace(";", " ").replace(",", "").split()})
            files = [f"  {file}  {checksum}\n" for file, checksum in facts.checksums.items()]
            missing += [text for text in files if text not in page_text]
            failures.append((name, workload, missing))
    assert [failure for failure in failures if failure[-1]] == []


def document_of(say: Say, *arguments: str) -> dict[str, Any]:
    output = say.ends(0, "round", *arguments, "--json")
    document: dict[str, Any] = json.loads(output)
    return document


def test_json_has_every_workload_with_its_gates(say: Say) -> None:
    """And nothing of what does not apply: only MultiStream has samples per query."""
    for name in ROUNDS:
        document, ours = document_of(say, name), load_round(name)
        assert (document["schema"], document["kind"], document["round"]) == (
            1,
            "pytest-mlperf round",
            name,
        )
        assert document["seeds"] == {
            "qsl": ours.seeds.qsl,
            "sample_index": ours.seeds.sample_index,
            "schedule": ours.seeds.schedule,
        }
        assert list(document["workloads"]) == list(ours.workloads)
        for key, facts in ours.workloads.items():
            theirs = document["workloads"][key]
            assert theirs["names"] == facts.names
            assert theirs["checker_names"] == list(facts.checker_names)
            assert theirs["targets"] == list(facts.targets)
            assert theirs["checksums"] == facts.checksums
            # Videos and answers of a RAG are made and timed, but judges are the user's own.
            assert bool(theirs["scorer"]) != bool(theirs["ungated_scorer"])
            assert theirs["adapter"] in {None, *registered("datasets")}
            assert (theirs["scorer"] or theirs["ungated_scorer"]) in registered("scorers")
            for metric in facts.metrics.values():
                metric_shown = theirs["metrics"][metric.name]
                assert metric_shown.get("share") == (metric.share and list(metric.share))
                for target in facts.targets:
                    gate = theirs["gates"][f"{100 * target:g}"][metric.name]
                    bounds = [
                        bound if bound is None else pytest.approx(bound, rel=1e-11)
                        for bound in metric.bounds(target)
                    ]
                    assert [gate["lowest"], gate["highest"]] == bounds
            for scenario, content in theirs["scenarios"].items():
                assert ("samples_per_query" in content) == (scenario == "MultiStream")
                assert ("latency_percentile" in content) == (scenario != "Offline")
                for values in (*theirs["metrics"].values(), *content["metrics"].values()):
                    assert None not in values.values()


def test_the_adapter_is_that_of_the_suites() -> None:
    """suites/datacenter uses what `round` names."""
    files = sorted((ROOT / "suites" / "datacenter").glob("*.mlperf.toml"))
    assert files
    for file in files:
        suite = plan_suite(file)[0].suite
        assert suite.rules is not None
        assert ADAPTERS[suite.rules.name] == suite.workload.dataset.use, file
        if suite.workload.scorer:
            named = suite.rules.scorer or suite.rules.ungated_scorer
            assert named == suite.workload.scorer.use, file


def test_drawn_answers_are_those_of_the_suites() -> None:
    """Every suite draws at the temperature that `round` names, the twins at theirs."""
    for kind, name in (("datacenter", "reference"), ("tiny", "twin")):
        for file in sorted((ROOT / "suites" / kind).glob("*.mlperf.toml")):
            suite = plan_suite(file)[0].suite
            temperatures = {
                float(engine.options.get("temperature", 0.0)) for engine in suite.engines
            }
            if suite.rules is not None:
                assert temperatures == {suite.rules.temperatures.get(name, 0.0)}, file


def test_json_of_one_workload_is_that_one(say: Say) -> None:
    """With a scenario with a gate of its own; 23.2829 x 0.99 is 23.050071 and no more."""
    workloads = document_of(say, "v6.1", "llama2-70b-99.9")["workloads"]
    assert list(workloads) == ["llama2-70b"]
    assert workloads["llama2-70b"]["scenarios"]["Interactive"] == {
        "min_query_count": 100,
        "min_duration_ms": 600_000,
        "latency_limit_ms": None,
        "ttft_limit_ms": 450.0,
        "tpot_limit_ms": 40.0,
        "latency_percentile": 0.99,
        "accuracy_samples": None,
        "metrics": {},
        "result": "result_completed_tokens_per_second",
        "gates": {},
    }
    assert workloads["llama2-70b"]["systems"] == {
        "datacenter": {
            "required": ["Offline"],
            "optional": ["Server", "Interactive"],
            "one_optional": True,
            "targets": None,
        }
    }
    other = document_of(say, "v6.1", "qwen3-vl-235b-a22b")["workloads"]["qwen3-vl-235b-a22b"]
    assert other["scenarios"]["Interactive"]["gates"] == {
        "99": {"f1": {"lowest": pytest.approx(0.779922), "highest": None}}
    }

    gates = document_of(say, "v4.1", "mixtral-8x7b")["workloads"]["mixtral-8x7b"]["gates"]["99"]
    assert gates["rouge2"] == {"lowest": 23.050071, "highest": None}
    for name in ROUNDS:
        _, output = say("round", name, "--json")
        numbers = re.findall(r"\d+\.\d+", output)
        assert [n for n in numbers if len(n.replace(".", "").strip("0")) > 12] == []


def test_a_wrong_name_is_one_sentence_with_the_nearest(say: Say) -> None:
    lines = {
        "v6.2": "no round 'v6.2'; did you mean 'v6.1'?",
        "2026": "no round '2026'; known: v4.1, v5.0, v5.1, v6.0, v6.1",
        "v6.1 lama2-70b": "round v6.1 has no workload 'lama2-70b'; did you mean 'llama2-70b'?",
        "v6.1 llama2-70b-99": "round v6.1 has no workload 'llama2-70b-99'; did you mean",
        "v4.1 whisper": "round v4.1 has no workload 'whisper'; ",
    }
    outputs = {line: say.ends(2, "round", *line.split()) for line in lines}
    assert [text.count("\n") for text in outputs.values()] == [1] * len(lines)
    assert [x for x, text in lines.items() if f"pytest-mlperf: {text}" not in outputs[x]] == []
