"""Units: spellings, values, and the only ways from one kind to another."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.conversions import (
    LOADGEN_TOKENS,
    Converted,
    SamplesPerQuery,
    TokensFrom,
    TokensPerSample,
    queries_to_samples,
    samples_to_tokens,
    tokens_to_samples,
)
from pytest_mlperf.core.metrics import METRICS, PUBLISHED
from pytest_mlperf.core.units import Kind, Quantity, Unit, parse, rounded, unit_of_result
from pytest_mlperf.rounds import ROUNDS, load_round

REFERENCE = TokensPerSample(value=294.45, source=TokensFrom.REFERENCE)
RUN = TokensPerSample(value=291.25, source=TokensFrom.RUN)

values = st.floats(min_value=0, max_value=1e15)
counts = st.floats(min_value=1e-3, max_value=1e6)
units = st.sampled_from(list(Unit))


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("tokens/sec", Unit.TOKENS_PER_S),
        ("tokens/s", Unit.TOKENS_PER_S),
        ("Tokens per second", Unit.TOKENS_PER_S),
        ("tok/s", Unit.TOKENS_PER_S),
        ("queries/s", Unit.QUERIES_PER_S),
        ("queries/sec", Unit.QUERIES_PER_S),
        ("QPS", Unit.QUERIES_PER_S),
        ("samples/sec", Unit.SAMPLES_PER_S),
        ("samples/sec/watt", Unit.SAMPLES_PER_S_PER_W),
        ("tokens/s/W", Unit.TOKENS_PER_S_PER_W),
        ("queries/sec/watt", Unit.QUERIES_PER_S_PER_W),
        (" samples  per second ", Unit.SAMPLES_PER_S),
        ("samples/J", Unit.SAMPLES_PER_J),
        ("USD/h", Unit.USD_PER_H),
        ("$/hr", Unit.USD_PER_H),
        ("tokens/$", Unit.TOKENS_PER_USD),
        ("us", Unit.US),
        ("\N{GREEK SMALL LETTER MU}s", Unit.US),
        ("x", Unit.TIMES),
    ],
)
def test_spellings(text: str, unit: Unit) -> None:
    assert parse(text) is unit


def test_every_spelling_means_one_unit() -> None:
    spelled = [spelling.casefold() for unit in Unit for spelling in unit.spellings]

    assert [text for text, count in Counter(spelled).items() if count > 1] == []
    assert {parse(spelling) for unit in Unit for spelling in unit.spellings} == set(Unit)
    assert all(unit.spellings[0] == str(unit) for unit in Unit)


@pytest.mark.parametrize("text", ["", "tokens", "images/s", "s/sample", "tokens/s/s", "W"])
def test_an_unknown_unit_lists_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"^unknown unit ") as error:
        parse(text)

    assert str(error.value) == f"unknown unit {text!r}; known: {', '.join(Unit)}"


@given(values, units, units)
def test_only_units_of_one_kind_convert_and_back_is_the_same(
    value: float, unit: Unit, other: Unit
) -> None:
    """No silent way between samples, tokens and queries, nor between rate and efficiency."""
    quantity = Quantity(value=value, unit=unit)
    if unit.kind is other.kind:
        there = quantity.to(other)
        assert there.unit is other
        assert there.to(unit).value == near(value)
    else:
        with pytest.raises(ValueError, match="only a conversion that says by what"):
            quantity.to(other)


@pytest.mark.parametrize(
    ("value", "unit", "other", "expected"),
    [
        (1.5, Unit.S, Unit.MS, 1500.0),
        (250.0, Unit.US, Unit.MS, 0.25),
        (2e9, Unit.NS, Unit.S, 2.0),
        (4.0, Unit.TOKENS_PER_S_PER_W, Unit.TOKENS_PER_J, 4.0),
        (0.5, Unit.SAMPLES_PER_J, Unit.SAMPLES_PER_S_PER_W, 0.5),
    ],
)
def test_values_in_other_units_of_their_kind(
    value: float, unit: Unit, other: Unit, expected: float
) -> None:
    assert Quantity(value=value, unit=unit).to(other).value == near(expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-9])
@pytest.mark.parametrize("unit", Unit)
def test_a_quantity_is_finite_and_never_negative(value: float, unit: Unit) -> None:
    with pytest.raises(ValueError, match="must be finite, at least 0"):
        Quantity(value=value, unit=unit)


def test_quantities_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Quantity(value=1.0, unit=Unit.S).value = 2.0  # type: ignore[misc]


@given(values, counts, st.sampled_from([TokensFrom.RUN, TokensFrom.REFERENCE]))
def test_tokens_and_samples_round_trip_by_one_number_of_tokens(
    value: float, count: float, source: TokensFrom
) -> None:
    by = TokensPerSample(value=count, source=source)
    for start in (Unit.TOKENS_PER_S, Unit.TOKENS_PER_S_PER_W, Unit.TOKENS_PER_J):
        there = tokens_to_samples(Quantity(value=value, unit=start), tokens_per_sample=by)
        back = samples_to_tokens(there.quantity, tokens_per_sample=by)

        assert there.quantity.unit.kind in (Kind.SAMPLES_PER_TIME, Kind.SAMPLES_PER_ENERGY)
        assert back.quantity.unit is start
        assert back.quantity.value == near(value)


@given(values, counts, st.sampled_from([Unit.TOKENS_PER_S, Unit.TOKENS_PER_J]))
def test_a_conversion_says_by_what_and_is_no_quantity(
    value: float, count: float, unit: Unit
) -> None:
    """Whatever is converted keeps its origin and whose number lies between."""
    by = TokensPerSample(value=count, source=TokensFrom.RUN)
    origin = Quantity(value=value, unit=unit)
    found = tokens_to_samples(origin, tokens_per_sample=by)

    assert not issubclass(type(found), Quantity)
    assert (found.origin, found.by) == (origin, by)
    assert str(by) in str(found)
    assert str(origin) in str(found)


@pytest.mark.parametrize(
    ("converted", "text"),
    [
        (
            tokens_to_samples(
                Quantity(value=34864.2, unit=Unit.TOKENS_PER_S), tokens_per_sample=REFERENCE
            ),
            "118.4 samples/s, from 34,864.2 tokens/s "
            "by MLPerf's reference of 294.45 tokens per sample",
        ),
        (
            tokens_to_samples(
                Quantity(value=34864.2, unit=Unit.TOKENS_PER_S), tokens_per_sample=RUN
            ),
            "119.7 samples/s, from 34,864.2 tokens/s by this run's own 291.25 tokens per sample",
        ),
        (
            tokens_to_samples(
                Quantity(value=20139.0, unit=Unit.TOKENS_PER_S),
                tokens_per_sample=TokensPerSample.of_loadgen(),
            ),
            "291.9 samples/s, from 20,139 tokens/s by LoadGen's constant of 69 tokens per sample",
        ),
        (
            samples_to_tokens(
                Quantity(value=41.1075, unit=Unit.SAMPLES_PER_S),
                tokens_per_sample=TokensPerSample(value=274.023, source=TokensFrom.RUN),
            ),
            "11,264 tokens/s, from 41.1075 samples/s by this run's own 274.023 tokens per sample",
        ),
        (
            queries_to_samples(
                Quantity(value=681328.0, unit=Unit.QUERIES_PER_S),
                samples_per_query=SamplesPerQuery.of("Server"),
            ),
            "681,328 samples/s, from 681,328 queries/s by 1 sample per query in Server",
        ),
        (
            queries_to_samples(
                Quantity(value=12.5, unit=Unit.QUERIES_PER_S),
                samples_per_query=SamplesPerQuery.of("MultiStream"),
            ),
            "100 samples/s, from 12.5 queries/s by 8 samples per query in MultiStream",
        ),
    ],
)
def test_a_conversion_in_words(converted: Converted, text: str) -> None:
    assert str(converted) == text


def test_one_rate_by_three_numbers_of_tokens_is_three_rates() -> None:
    """Why the number must be named: MLPerf's reference is 1 % off this run's own tokens."""
    rate = Quantity(value=34864.2, unit=Unit.TOKENS_PER_S)
    found = {
        by: tokens_to_samples(rate, tokens_per_sample=by).quantity.value
        for by in (REFERENCE, RUN, TokensPerSample.of_loadgen())
    }

    assert len(set(found.values())) == 3
    assert found[RUN] / found[REFERENCE] == near(294.45 / 291.25)


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        (Quantity(value=2.0, unit=Unit.SAMPLES_PER_S), "2 samples/s counts no tokens"),
        (Quantity(value=2.0, unit=Unit.QUERIES_PER_S), "2 queries/s counts no tokens"),
        (Quantity(value=2.0, unit=Unit.USD_PER_H), "2 USD/h counts no tokens"),
    ],
)
def test_what_counts_no_tokens_is_not_converted(quantity: Quantity, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}; units that do: tokens/s, "):
        tokens_to_samples(quantity, tokens_per_sample=RUN)


def test_samples_and_queries_are_not_taken_for_each_other() -> None:
    tokens = Quantity(value=2.0, unit=Unit.TOKENS_PER_S)

    with pytest.raises(ValueError, match="counts no samples"):
        samples_to_tokens(tokens, tokens_per_sample=RUN)
    with pytest.raises(ValueError, match="counts no queries"):
        queries_to_samples(tokens, samples_per_query=SamplesPerQuery.of("Server"))


@pytest.mark.parametrize(
    ("scenario", "samples"),
    [("Server", 1), ("Interactive", 1), ("SingleStream", 1), ("MultiStream", 8)],
)
def test_samples_of_a_query(scenario: str, samples: int) -> None:
    assert SamplesPerQuery.of(scenario).value == samples


@pytest.mark.parametrize("scenario", ["Offline", "", "server"])
def test_queries_of_other_scenarios_are_no_samples(scenario: str) -> None:
    """In Offline one query holds everything."""
    with pytest.raises(ValueError, match="no fixed number of samples"):
        SamplesPerQuery.of(scenario)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_tokens_per_sample_are_positive(value: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        TokensPerSample(value=value, source=TokensFrom.RUN)


def test_loadgens_constant_is_69_and_nothing_else() -> None:
    assert TokensPerSample.of_loadgen().value == LOADGEN_TOKENS
    with pytest.raises(ValueError, match="LoadGen's constant is 69 tokens per sample, not 68"):
        TokensPerSample(value=68.0, source=TokensFrom.LOADGEN)
    with pytest.raises(ValueError, match="at least 1"):
        SamplesPerQuery(value=0, scenario="Server")


def test_loadgens_constant_is_the_rounds() -> None:
    inferred = {
        own.inferred_tokens for name in ROUNDS for own in load_round(name).workloads.values()
    }

    assert inferred == {None, LOADGEN_TOKENS}


@pytest.mark.parametrize(
    ("field", "unit"),
    [
        ("result_samples_per_second", Unit.SAMPLES_PER_S),
        ("result_completed_samples_per_sec", Unit.SAMPLES_PER_S),
        ("result_scheduled_samples_per_sec", Unit.SAMPLES_PER_S),
        ("result_tokens_per_second", Unit.TOKENS_PER_S),
        ("result_completed_tokens_per_second", Unit.TOKENS_PER_S),
        ("result_inferred_tokens_per_second", Unit.TOKENS_PER_S),
        ("result_inferred_completed_tokens_per_second", Unit.TOKENS_PER_S),
        ("early_stopping_latency_ss", Unit.NS),
        ("early_stopping_latency_ms", Unit.NS),
        ("result_99.00_percentile_per_query_latency_ns", Unit.NS),
    ],
)
def test_units_of_result_fields(field: str, unit: Unit) -> None:
    """The "ms" of early_stopping_latency_ms is MultiStream; LoadGen logs every time in ns."""
    assert unit_of_result(field) is unit


@pytest.mark.parametrize("field", ["", "result_validity", "tokens_per_second", "num_errors"])
def test_other_fields_are_no_results(field: str) -> None:
    with pytest.raises(ValueError, match="is no result field"):
        unit_of_result(field)


@pytest.mark.parametrize("round_name", ROUNDS)
def test_the_result_field_of_every_round_has_a_unit(round_name: str) -> None:
    """Where a workload's tokens are inferred or timed, its throughput is in tokens/s."""
    for own in load_round(round_name).workloads.values():
        for name, scenario in own.scenarios.items():
            if scenario.result and name in ("Offline", "Server", "Interactive"):
                tokens = "tokens" in scenario.result
                expected = Unit.TOKENS_PER_S if tokens else Unit.SAMPLES_PER_S
                assert unit_of_result(scenario.result) is expected
            elif scenario.result:
                assert unit_of_result(scenario.result).kind in (Kind.TIME, Kind.TOKENS_PER_TIME)


def test_only_rates_have_a_unit_per_watt() -> None:
    assert Unit.TOKENS_PER_S.per_watt is Unit.TOKENS_PER_S_PER_W
    for unit in Unit:
        if unit.kind.value.endswith("per time") and unit is not Unit.USD_PER_H:
            assert unit.per_watt.value == f"{unit}/W"
        else:
            with pytest.raises(ValueError, match="per watt is no unit"):
                unit.per_watt  # noqa: B018


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (118.4045, "118.4"),
        (20138.6, "20,139"),
        (0.00236858, "0.002369"),
        (999.96, "1,000"),
        (1000.4, "1,000"),
        (0.0, "0"),
        (69.0, "69"),
    ],
)
def test_derived_values_have_four_digits(value: float, text: str) -> None:
    assert rounded(value) == text


def test_every_metric_counts_what_its_unit_says() -> None:
    """The metric table's SI units and kinds agree; what others print is none of ours."""
    assert METRICS.keys() & PUBLISHED.keys() == set()
    expected = {
        "s": {Kind.TIME},
        "1/s": {Kind.SAMPLES_PER_TIME, Kind.TOKENS_PER_TIME},
        "1/J": {Kind.SAMPLES_PER_ENERGY, Kind.TOKENS_PER_ENERGY},
        "J": {Kind.ENERGY_PER_SAMPLE},
        "1": {Kind.TOKENS_PER_SAMPLE, Kind.RATIO},
        "USD/h": {Kind.PRICE},
        "1/USD": {Kind.TOKENS_PER_MONEY},
    }
    for name, metric in {**METRICS, **PUBLISHED}.items():
        assert metric.name == name
        assert metric.kind in expected[metric.unit]
