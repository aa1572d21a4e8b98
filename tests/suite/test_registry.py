"""Extensions are found by name; their options are the keyword parameters of their factory."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.addons import Command
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.registry import (
    Group,
    check_call,
    check_options,
    declared,
    name_of,
    registered,
    resolve,
    target,
)


def test_a_name_leads_to_an_attribute_of_a_module_and_everything_else_is_refused() -> None:
    places: dict[tuple[Group, str], str] = {
        ("engines", "null"): "pytest_mlperf.builtin.null:NullEngine",
        ("engines", "onnxruntime"): "pytest_mlperf.adapters.engines.onnxruntime:OnnxRuntimeEngine",
        ("datasets", "synthetic"): "pytest_mlperf.builtin.synthetic:SyntheticDataset",
        ("datasets", "imagenet"): "pytest_mlperf.adapters.datasets.imagenet:ImageNetDataset",
        ("scorers", "top1"): "pytest_mlperf.adapters.scorers.top1:Top1Scorer",
        ("engines", "a.b_c:Name"): "a.b_c:Name",
        ("engines", "module:function"): "module:function",
    }
    assert {place: target(*place) for place in places} == places
    for use in ("", "nul", "a.b:", ":Name", "a.b:c.d", "a b:c", "a.b:c\n", "1:a"):
        with pytest.raises(SuiteError, match=re.escape(f"no engine {use!r} is installed")):
            target("engines", use)


def test_every_registered_extension_can_be_imported() -> None:
    """Names of modules that moved stay valid, as suites and accepted baselines hold them."""
    groups: tuple[Group, ...] = ("engines", "datasets", "scorers")
    for group in groups:
        assert registered(group)
        assert all(callable(extension.load()) for extension in registered(group).values())
    names = {
        "pytest_mlperf.scorers.top1:Top1Scorer": "top1",
        "pytest_mlperf.scorers.mean_ap:MeanApScorer": "map",
        "pytest_mlperf.scorers.rouge:RougeScorer": "rouge",
        "mine:RougeScorer": "mine:RougeScorer",
        "pytest_mlperf.scorers.top1:Other": "pytest_mlperf.scorers.top1:Other",
    }
    assert {place: name_of("scorers", place) for place in names} == names
    former = {
        "pytest_mlperf.engines.null:NullEngine": "null",
        "pytest_mlperf.engines.openai.endpoints:EndpointsEngine": "endpoints",
        "pytest_mlperf.datasets.synthetic:SyntheticDataset": "synthetic",
        "pytest_mlperf.builders.torchao:TorchAoBuilder": "torchao",
    }
    of: dict[str, Group] = {"synthetic": "datasets", "torchao": "builders"}
    for target_path, name in former.items():
        group = of.get(name, "engines")
        assert target(group, target_path) == target(group, name)
        assert resolve(target_path) is registered(group)[name].load()


def only_given(*, dataset: Any, model: Any, precision: str) -> None: ...


def with_options(*, needed: int, other: str = "") -> None: ...


def takes_all(**options: Any) -> None: ...


def test_options_are_the_keyword_parameters() -> None:
    """Code of one's own is not imported to check them."""
    right: list[tuple[Any, dict[str, Any]]] = [
        (only_given, {}),
        (with_options, {"needed": 1}),
        (with_options, {"needed": 1, "other": "x"}),
        (takes_all, {"anything": 1}),
    ]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (only_given, {"model": 1}, "it has no option 'model'; known: none"),
        (with_options, {}, "it needs the option 'needed'"),
        (with_options, {"needed": 1, "othr": 1}, "it has no option 'othr'; did you mean 'other'?"),
    ]
    for factory, options in right:
        check_call("it", factory, options)
    for factory, options, message in wrong:
        with pytest.raises(SuiteError) as caught:
            check_call("it", factory, options)
        assert str(caught.value) == message
    check_options("engines", "no.such.module:Engine", {"anything": 1})


def test_a_broken_declaration_is_reported_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For an add-on that cannot be imported, or that declares something else; others still load."""
    entries = {
        name: EntryPoint(name, value, "pytest_mlperf.commands")
        for name, value in {
            "gone": "no_such_add_on.commands:GONE",
            "other": f"{__name__}:only_given",
            "limits": "pytest_mlperf.addons.official:LIMITS",
        }.items()
    }
    monkeypatch.setattr(registry, "registered", lambda _: entries)

    loaded = declared("commands", Command, Command)

    assert loaded["limits"].module == "pytest_mlperf.addons.official.commands.limits"
    assert loaded["gone"] == Command("No module named 'no_such_add_on'", "no_such_add_on.commands")
    assert loaded["other"] == Command("it is no Command", __name__)
