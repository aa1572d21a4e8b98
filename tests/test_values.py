"""Scenarios and kinds of tests are values: no module compares them with words."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator

import pytest
from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.case import SUITE_SCENARIOS, Case, Kind, Scenario
from tests.sources import modules, parsed

WORDS = {*Scenario, *Kind}
OF_PHASES = {Kind.ACCURACY, Kind.PERFORMANCE}
"""Words that also name phases of a run and folders of LoadGen's logs."""


def compared_words(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each comparison of a scenario or kind with a word, by line and source."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        texts = [part for side in sides for part in ast.walk(side)]
        words = {part.value for part in texts if isinstance(part, ast.Constant)} & WORDS
        source = ast.unparse(node)
        if words - OF_PHASES or (words and ("kind" in source or "scenario" in source)):
            yield node.lineno, source


def test_the_count_sees_each_form_of_a_comparison() -> None:
    forms = (
        'scenario == "Offline"',
        'case.scenario in {"Server", "Interactive"}',
        'name not in ("Concurrency", other)',
        'verdict.kind != "accuracy"',
        '"performance" in case.kinds',
        'test == "TEST01"',
    )
    assert [len(list(compared_words(ast.parse(form)))) for form in forms] == [1] * len(forms)
    assert not list(compared_words(ast.parse('phase == "accuracy" or scenario is Scenario.SERVER')))


def test_no_module_compares_a_scenario_or_a_kind_with_a_word() -> None:
    comparisons = [
        f"{name}:{line}: {source}"
        for name, file in modules().items()
        for line, source in compared_words(parsed(file))
    ]
    assert comparisons == []


@pytest.mark.parametrize("value", [*Scenario, *Kind])
def test_a_value_is_its_word_in_messages_files_and_other_processes(value: Scenario | Kind) -> None:
    word = value.value
    assert (str(value), f"{value}", f"{value!r}", "-".join([value])) == (
        word,
        word,
        repr(word),
        word,
    )
    assert json.dumps({value: value}) == json.dumps({word: word})
    assert value == word
    assert type(value)(word) is pickle.loads(pickle.dumps(value)) is value


def test_files_are_read_as_values_and_unknown_words_are_refused_with_those_that_are_known() -> None:
    cases = TypeAdapter(Case)
    written = {
        "workload": "w",
        "scenario": "Offline",
        "engine": "e",
        "precision": "fp8",
        "accelerator": "cpu",
    }
    case = cases.validate_python(written)
    assert case.scenario is Scenario.OFFLINE
    assert cases.dump_python(case, mode="json") == written
    with pytest.raises(ValidationError, match="'OpenLoop' or 'Benchmark'"):
        cases.validate_python({**written, "scenario": "offline"})


def test_properties_of_scenarios() -> None:
    def having(name: str) -> set[str]:
        return {scenario.value for scenario in Scenario if getattr(scenario, name)}

    assert having("rate_is_condition") == {"Server", "Interactive"}
    assert having("answers_one_at_a_time") == {"SingleStream", "MultiStream"}
    assert having("is_curve") == {"Concurrency", "OpenLoop"}
    assert [s for s in Scenario if s.of_loadgen is not s] == [Scenario.INTERACTIVE]
    assert set(Scenario) - set(SUITE_SCENARIOS) == {Scenario.BENCHMARK}
    assert {kind.value for kind in Kind if kind.is_audit} == {
        f"TEST0{n}" for n in (1, 4, 5, 6, 7, 8, 9)
    }
