"""Scorer function_calls is MLPerf's for Qwen3.6: BFCL v4's check of single turns."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from pytest_mlperf.adapters.scorers.function_calls import FunctionCallsScorer
from pytest_mlperf.adapters.scorers.function_calls._extract import calls_in
from pytest_mlperf.adapters.scorers.function_calls._foreign import (
    MAX_VALUE_CHARACTERS,
    java_value,
    js_value,
)
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences


def answer(*calls: tuple[str, Any]) -> bytes:
    return json.dumps(
        [{"function": {"name": name, "arguments": json.dumps(own)}} for name, own in calls]
    ).encode()


def table(
    values: dict[str, Any],
    types: dict[str, Any],
    *,
    subset: str = "simple_python",
    required: tuple[str, ...] = (),
    calls: int = 1,
) -> dict[str, Any]:
    kinds = {
        name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in types.items()
    }
    parameters = {"type": "dict", "properties": kinds, "required": list(required)}
    return {
        "subset": subset,
        "ground_truth": [{"a.b": values}] * calls,
        "func_description": [{"name": "a.b", "parameters": parameters}],
    }


def accuracy(output: bytes, reference: dict[str, Any]) -> float:
    return FunctionCallsScorer().score([output], [reference]).aggregate["accuracy"]


LIST = {"type": "array", "items": {"type": "string"}}
TEXTS = table({"x": ["new york ny"]}, {"x": "string"})
FLOAT = table({"x": [5.0]}, {"x": "float"})
INT = table({"x": [5]}, {"x": "integer"})
ONE = table({"x": [1]}, {"x": "integer"})
OPTIONAL = table({"x": [5, ""]}, {"x": "integer"})
LISTS = table({"x": [["a", "b"]]}, {"x": LIST})
DICTS = table({"x": [{"k": ["v", ""], "n": [1]}]}, {"x": "dict"})
DICT_LIST = table(
    {"x": [[{"k": [1]}, {"k": [2]}]]}, {"x": {"type": "array", "items": {"type": "dict"}}}
)
JAVA = table({"x": [5]}, {"x": "integer"}, subset="simple_java")
JAVA_LONG = table({"x": [5]}, {"x": "long"}, subset="simple_java")
JAVA_SET = table({"x": [5]}, {"x": "Set"}, subset="simple_java")
JS = table({"x": [True]}, {"x": "Boolean"}, subset="simple_javascript")
NEEDED = table({"x": [5]}, {"x": "integer"}, required=("x",))

CASES = [
    ({"x": "New York, NY"}, TEXTS, True),
    ({"x": "Boston"}, TEXTS, False),
    ({"x": 5}, FLOAT, True),
    ({"x": 5.0}, INT, False),
    ({"x": True}, ONE, False),
    ({"x": "5"}, INT, False),
    ({}, OPTIONAL, True),
    ({}, INT, False),
    ({}, NEEDED, False),
    ({"x": 5, "y": 1}, INT, False),
    ({"x": ["A", "b"]}, LISTS, True),
    ({"x": ["b", "a"]}, LISTS, False),
    ({"x": [1, 2]}, LISTS, False),
    ({"x": {"n": 1}}, DICTS, True),
    ({"x": {"n": 1, "k": "V"}}, DICTS, True),
    ({"x": {"k": "v"}}, DICTS, False),
    ({"x": {"n": 1, "z": 1}}, DICTS, False),
    ({"x": [{"k": 1}, {"k": 2}]}, DICT_LIST, True),
    ({"x": [{"k": 2}, {"k": 1}]}, DICT_LIST, False),
    ({"x": 5}, JAVA, False),
    ({"x": "5"}, JAVA, True),
    ({"x": "5L"}, JAVA_LONG, True),
    ({"x": "5"}, JAVA_LONG, False),
    ({"x": "true"}, JS, True),
    ({"x": "5"}, JAVA_SET, False),  # the reference's scoring ends here
    (["x"], INT, False),  # and here
]


def test_arguments_are_right_as_bfcl_says() -> None:
    accuracies = [accuracy(answer(("a_b", given)), reference) for given, reference, _ in CASES]

    assert accuracies == [100 * right for *_, right in CASES]
    assert accuracy(answer(("a.b", {"x": 5})), INT) == 0, "a point becomes an underscore"


def test_the_number_of_calls_must_agree() -> None:
    for subset, allowed, calls, right in (
        ("simple_python", 1, 2, False),
        ("multiple", 1, 1, True),
        ("multiple", 1, 2, False),
        ("parallel", 2, 2, True),
        ("parallel", 2, 1, False),
        ("parallel_multiple", 2, 3, False),
    ):
        reference = table({"x": [5]}, {"x": "integer"}, subset=subset, calls=allowed)
        assert accuracy(answer(*[("a_b", {"x": 5})] * calls), reference) == 100 * right


def test_parallel_calls_may_come_in_any_order_and_are_matched_without_looking_back() -> None:
    reference = table({"x": [1]}, {"x": "integer"}, subset="parallel")
    both, one_call = [{"a.b": {"x": [1, 2]}}, {"a.b": {"x": [1]}}], ("a_b", {"x": 1})
    two = ("a_b", {"x": 2})

    assert accuracy(answer(two, one_call), {**reference, "ground_truth": both}) == 100
    assert accuracy(answer(one_call, two), {**reference, "ground_truth": both}) == 0
    assert accuracy(answer(one_call, two), {**reference, "ground_truth": both[::-1]}) == 100


def test_where_nothing_is_to_be_called_only_tool_calls_are_wrong() -> None:
    for subset in ("irrelevance", "live_irrelevance"):
        reference = {"subset": subset}

        assert accuracy(b"There is no such function.", reference) == 100
        assert accuracy(b'[{"name": "a", "arguments": {}}]', reference) == 100
        assert accuracy(answer(("a", {})), reference) == 0


def test_calls_are_read_from_the_first_form_that_an_answer_has() -> None:
    system = "__import__('os').system('true')"
    calls: dict[str, list[dict[str, Any]]] = {
        "f(x=1, y='a)b')": [{"f": {"x": 1, "y": "a)b"}}],
        "Sure: f(x=g(1)).": [{"f": {"x": "g(1)"}}],
        "f(a, b: int) is a declaration, print(x=1) a word": [],
        "f(x=)": [{"f": {"_raw": "x="}}],
        f"f(x={system})": [{"f": {"x": system}}],
        '[{"name": "f", "arguments": "{\\"x\\": 1}"}]': [{"f": {"x": 1}}],
        '[{"function": {"name": "f", "arguments": "{"}}]': [{"f": {}}],
        '[{"function": {"name": ["f"]}}]': [{"": {}}],
        "[]": [],
        "": [],
    }

    assert {text: calls_in(text) for text in calls} == calls


JAVA_VALUES: list[tuple[str, str, str | None, Any]] = [
    ("new int[]{1, 2}", "Array", "integer", [1, 2]),
    ('new ArrayList<>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
    ("new ArrayList<Long>() {{ add(1L); add(2L); }}", "ArrayList", "long", [1, 2]),
    ('new HashMap<String, Object>() {{ put("k", 1); }}', "HashMap", None, {"k": 1}),
    ("new HashMap<>()", "HashMap", None, {}),
    ("1.5f", "float", None, 1.5),
    ("1.5", "float", None, "1.5"),
    ("list", "ArrayList", None, "list"),
]

JS_VALUES: list[tuple[str, str, str | None, Any]] = [
    (" [ [ 1, 2 ], [ 3,   4], [5, 6]]", "array", "array", [[1, 2], [3, 4], [5, 6]]),
    ("new Array([1, 2], [3, 4])", "array", None, [[1, 2], [3, 4]]),
    ("[[1, 'a]b'], [2]]", "array", None, [[1, "'a"], [2]]),  # read as far as it is well formed
    ("[1n, 2n]", "array", "Bigint", [1, 2]),
    ("{'a': [1, 2], b: true}", "dict", None, {"a": [1, 2], "b": True}),
    ("3n", "Bigint", None, 3),
    ("'a'", "String", None, "a"),
]


def test_values_in_java_and_javascript() -> None:
    assert [(*row[:3], java_value(*row[:3])) for row in JAVA_VALUES] == JAVA_VALUES
    assert [(*row[:3], js_value(*row[:3])) for row in JS_VALUES] == JS_VALUES


@pytest.mark.slow
def test_hostile_values_and_answers_take_no_time() -> None:
    """Patterns that go back and forth would take longer than anybody waits."""
    heads = ["[[", "new Array([", "{a:", "new HashMap<>() {", "new ArrayList<>() {{"]
    pieces = ["],[", "[[", " ", "{ ", "(", "f(", "'", ", a:", 'put("k", ', "add(", "\n", "1"]
    for head, piece in product(heads, [*pieces, "> () {"]):
        text = (head + piece * MAX_VALUE_CHARACTERS)[:MAX_VALUE_CHARACTERS]
        for kind in ("Array", "ArrayList", "HashMap"):
            java_value(text, kind, "integer" if kind != "HashMap" else None)
        for kind in ("array", "dict"):
            js_value(text, kind)
        calls_in((head + piece * 1024)[:1024])
    calls_in("[" * 100_000)


HOSTILE = {
    "minus signs": f"a_b(x={'-' * 900}y)",
    "a long sum": f"a_b(x={'1+' * 1500}y)",
    "attributes": f"a_b(x=y{'.a' * 1500})",
    "indices": f"a_b(x=y{'[0]' * 1000})",
    "functions": f"a_b(x={'lambda:' * 500}1)",
    "brackets": f"a_b(x={'[' * 1900}{']' * 1900})",
    "more digits than Python writes": f"a_b(x=0x{'f' * 4000})",
    "no float": json.dumps([{"name": "a_b", "arguments": f'{{"x": {"9" * 400}}}'}]),
    "deep arguments": json.dumps([{"name": "a_b", "arguments": '{"x":' * 3000 + "1" + "}" * 3000}]),
    "no arguments": json.dumps([{"name": "a_b", "arguments": None}]),
    "half a pair": json.dumps([{"name": "a_b", "arguments": {"x": "\ud800"}}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_wrong_and_does_not_end_the_scoring(name: str) -> None:
    references = [FLOAT, INT, TEXTS, LISTS, DICTS, {**INT, "subset": "live_parallel"}]

    assert [accuracy(HOSTILE[name].encode(), one) for one in references] == [0.0] * 6


REFERENCES = [TEXTS, INT, {**INT, "subset": "live_simple"}, {"subset": "irrelevance"}, JAVA]
ANSWERS = [
    answer(("a_b", {"x": "NEW YORK NY"})),
    answer(("a_b", {"x": 6})),
    answer(("a_b", {"x": 5})),
    b"No.",
    answer(("a_b", {"x": 5})),
]


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers() -> None:
    scores = check_scorer(FunctionCallsScorer, ANSWERS, REFERENCES)

    # Simple: Python half, Java none; live and irrelevance all.
    assert scores.aggregate["accuracy"] == 60.0
    assert scores.aggregate["normalized"] == pytest.approx((25 + 100 + 100) / 3)
    values = [value for value in scores.per_sample["normalized"] if value is not None]
    assert sum(values) / len(values) == pytest.approx(scores.aggregate["normalized"])


def test_columns_may_be_json_as_in_mlperfs_table_and_others_are_refused() -> None:
    columns = {key: json.dumps(INT[key]) for key in ("ground_truth", "func_description")}
    changes: list[dict[str, Any]] = [
        {"subset": "web_search"},
        {"ground_truth": "{"},
        {"ground_truth": 3},
    ]
    rows = [([INT, {**INT, **change}], "sample 1 has an invalid reference") for change in changes]

    assert accuracy(answer(("a_b", {"x": 5})), {"subset": "multiple", **columns}) == 100
    score = FunctionCallsScorer().score
    assert differences(lambda references: score([b"", b""], references), RunError, rows) == []
