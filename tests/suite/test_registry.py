"""Extensions are found by name; their options are the keyword parameters of their factory."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.registry import Group, check_call, check_options, name_of, registered, target


@pytest.mark.parametrize(
    ("group", "use", "expected"),
    [
        ("engines", "null", "pytest_mlperf.engines.null:NullEngine"),
        ("engines", "onnxruntime", "pytest_mlperf.engines.onnxruntime:OnnxRuntimeEngine"),
        ("datasets", "synthetic", "pytest_mlperf.datasets.synthetic:SyntheticDataset"),
        ("datasets", "imagenet", "pytest_mlperf.datasets.imagenet:ImageNetDataset"),
        ("scorers", "top1", "pytest_mlperf.scorers.top1:Top1Scorer"),
        ("engines", "a.b_c:Name", "a.b_c:Name"),
        ("engines", "module:function", "module:function"),
    ],
)
def test_a_name_leads_to_a_module_and_what_stands_in_it(
    group: Group, use: str, expected: str
) -> None:
    assert target(group, use) == expected


@pytest.mark.parametrize("use", ["", "nul", "a.b:", ":Name", "a.b:c.d", "a b:c", "a.b:c\n", "1:a"])
def test_everything_else_is_refused(use: str) -> None:
    with pytest.raises(SuiteError, match=re.escape(f"no engine {use!r} is installed")):
        target("engines", use)


def test_every_registered_extension_can_be_imported() -> None:
    groups: tuple[Group, ...] = ("engines", "datasets", "scorers")
    for group in groups:
        assert registered(group)
        assert all(callable(extension.load()) for extension in registered(group).values())


def only_given(*, dataset: Any, model: Any, precision: str) -> None: ...


def with_options(*, needed: int, other: str = "") -> None: ...


def takes_all(**options: Any) -> None: ...


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (only_given, {}, None),
        (only_given, {"model": 1}, "it has no option 'model'; known: none"),
        (with_options, {"needed": 1}, None),
        (with_options, {"needed": 1, "other": "x"}, None),
        (with_options, {}, "it needs the option 'needed'"),
        (with_options, {"needed": 1, "othr": 1}, "it has no option 'othr'; did you mean 'other'?"),
        (takes_all, {"anything": 1}, None),
    ],
)
def test_options_are_the_keyword_parameters(
    factory: Any, options: dict[str, Any], message: str | None
) -> None:
    if message is None:
        check_call("it", factory, options)
        return
    with pytest.raises(SuiteError) as caught:
        check_call("it", factory, options)

    assert str(caught.value) == message


def test_code_of_ones_own_is_not_imported_to_check_its_options() -> None:
    check_options("engines", "no.such.module:Engine", {"anything": 1})


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("pytest_mlperf.scorers.top1:Top1Scorer", "top1"),
        ("pytest_mlperf.scorers.mean_ap:MeanApScorer", "map"),
        ("pytest_mlperf.scorers.rouge:RougeScorer", "rouge"),
        ("mine:RougeScorer", "mine:RougeScorer"),
        ("pytest_mlperf.scorers.top1:Other", "pytest_mlperf.scorers.top1:Other"),
    ],
)
def test_a_scorer_that_was_written_down_is_known_though_its_module_moved(
    target: str, name: str
) -> None:
    assert name_of("scorers", target) == name
