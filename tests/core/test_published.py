"""Published figures: 132 measurements represented, and what cannot be refused."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.metrics import METRICS, PUBLISHED, Direction
from pytest_mlperf.core.origin import Accelerator, Origin, Source
from pytest_mlperf.core.printed import Printed
from pytest_mlperf.core.published import Published, PublishedFile, metric_named, metric_of
from pytest_mlperf.core.published_ratio import Ratio, ratio, why_not_comparable
from pytest_mlperf.core.units import Quantity, Unit
from tests.core.transcription import (
    BY_ID,
    ROWS,
    V41,
    Row,
    corrected,
    id_of,
    mislabelled,
    published,
    results,
    unit_as_printed,
)

MISLABELLED_LINES = {84, 85, 86, 103, 116}

EACH = pytest.mark.parametrize("row", ROWS, ids=id_of)


def figure(row_id: str, **changes: Any) -> Published:
    return dataclasses.replace(corrected(BY_ID[row_id]), **changes)


def moved(row_id: str, **changes: Any) -> Published:
    """A figure with another origin."""
    own = figure(row_id)
    return dataclasses.replace(own, origin=dataclasses.replace(own.origin, **changes))


# --- all 132


def test_the_transcription_has_all_132_by_kind() -> None:
    assert Counter(row["what"] for row in ROWS) == {
        "throughput": 83,
        "decode": 20,
        "per watt": 17,
        "price": 4,
        "tokens per dollar": 4,
        "relative value": 4,
    }
    assert len(BY_ID) == len(ROWS) == 132


@EACH
def test_each_measurement_is_represented_and_its_text_comes_back(row: Row) -> None:
    """From the typed value alone: "3.", "~169,600", "$3.29/hr", "1.0x"."""
    own = corrected(row)

    assert own.printed.text == row["text"]
    assert own.quantity.unit is (Unit(row["unit"]) if mislabelled(row) else unit_as_printed(row))
    assert own.printed.approximate == row["text"].startswith("~")
    assert own.accelerator.count == (int(row["count"]) if row["count"] else None)
    assert own.origin.line == int(row["line"])


def test_metrics_of_the_132() -> None:
    assert Counter(corrected(row).metric for row in ROWS) == {
        "throughput": 57,
        "tokens_per_second": 26,
        "samples_per_watt_system": 11,
        "tokens_per_watt_system": 6,
        "decode_tokens_per_second": 20,
        "usd_per_gpu_hour": 4,
        "tokens_per_usd": 4,
        "relative_value": 4,
    }


def test_sources_of_the_132() -> None:
    assert Counter(corrected(row).origin.source for row in ROWS) == {
        Source.MLPERF: 85,
        Source.PREVIEW: 2,
        Source.UNVERIFIED: 41,
        Source.VENDOR: 4,
    }


@EACH
def test_as_printed_exactly_the_mislabelled_are_refused(row: Row) -> None:
    """Five lines of GPT-J: five rates, and the efficiencies that stand beside two of them."""
    unit = unit_as_printed(row)
    if not mislabelled(row):
        assert published(row, unit).printed.text == row["text"]
        return
    assert row["workload"] == "gptj"
    assert int(row["line"]) in MISLABELLED_LINES
    with pytest.raises(ValueError, match=f"is printed in {unit}, but result_inferred"):
        published(row, unit)
    assert published(row, Unit(row["unit"])).quantity.unit is Unit(row["unit"])


def test_which_are_mislabelled() -> None:
    wrong = [row for row in ROWS if mislabelled(row)]
    rates = [int(row["line"]) for row in wrong if row["what"] == "throughput"]
    efficiencies = [int(row["line"]) for row in wrong if row["what"] == "per watt"]

    assert rates == sorted(MISLABELLED_LINES)
    assert efficiencies == [103, 116]
    # Queries of Server are samples, so no other printed unit says anything wrong.
    others = {
        (row["scenario"], row["unit_printed"].split("/")[0], row["unit"].split("/")[0])
        for row in ROWS
        if row["unit_printed"] and not mislabelled(row)
    }
    assert {pair for pair in others if pair[1] != pair[2]} == {("Server", "samples", "queries")}


CONSTANT = "by LoadGen's constant of 69 tokens per sample"


@pytest.mark.parametrize(
    ("row_id", "sentence"),
    [
        (
            "A84.1",
            "gptj Server in v4.1: 20,139 is printed in queries/s, but "
            "result_inferred_completed_tokens_per_second is in tokens/s: the number is "
            f"20,139 tokens/s, which is 291.9 samples/s {CONSTANT}",
        ),
        (
            "A85.1",
            "gptj Server in v4.1: 19,811 is printed in queries/s, but "
            "result_inferred_completed_tokens_per_second is in tokens/s: the number is "
            f"19,811 tokens/s, which is 287.1 samples/s {CONSTANT}",
        ),
        (
            "A86.1",
            "gptj Server in v4.1: 2,513 is printed in queries/s, but "
            "result_inferred_completed_tokens_per_second is in tokens/s: the number is "
            f"2,513 tokens/s, which is 36.42 samples/s {CONSTANT}",
        ),
        (
            "A103.1",
            "gptj Offline in v4.1: 13,097 is printed in samples/s, but "
            "result_inferred_tokens_per_second is in tokens/s: the number is "
            f"13,097 tokens/s, which is 189.8 samples/s {CONSTANT}",
        ),
        (
            "A103.2",
            "gptj Offline in v4.1: 3. is printed in samples/s/W, but "
            "result_inferred_tokens_per_second is in tokens/s: the number is "
            f"3. tokens/s/W, which is 0.04348 samples/s/W {CONSTANT}",
        ),
        (
            "A116.1",
            "gptj Server in v4.1: 11,701 is printed in queries/s, but "
            "result_inferred_completed_tokens_per_second is in tokens/s: the number is "
            f"11,701 tokens/s, which is 169.6 samples/s {CONSTANT}",
        ),
        (
            "A116.2",
            "gptj Server in v4.1: 2 is printed in queries/s/W, but "
            "result_inferred_completed_tokens_per_second is in tokens/s: the number is "
            f"2 tokens/s/W, which is 0.02899 samples/s/W {CONSTANT}",
        ),
    ],
)
def test_the_sentence_names_both_units_and_the_number_in_each(row_id: str, sentence: str) -> None:
    row = BY_ID[row_id]
    with pytest.raises(ValueError, match="is printed in") as error:
        published(row, unit_as_printed(row))

    assert str(error.value) == sentence


# --- what cannot be


@pytest.mark.parametrize(
    ("row_id", "unit", "sentence"),
    [
        (
            "A29.1",
            Unit.SAMPLES_PER_S,
            "llama2-70b Offline in v4.1: 34,864 is printed in samples/s, but "
            "result_tokens_per_second is in tokens/s: the number is 34,864 tokens/s, which is "
            "119.7 samples/s by this run's own 291.249 tokens per sample",
        ),
        (
            "A38.1",
            Unit.TOKENS_PER_S,
            "resnet50 Offline in v4.1: 768,235 is printed in tokens/s, but "
            "result_samples_per_second is in samples/s: the number is 768,235 samples/s",
        ),
        (
            "A52.1",
            Unit.QUERIES_PER_S,
            "dlrm-v2 Offline in v4.1: 639,512 is printed in queries/s, but "
            "result_samples_per_second is in samples/s: the number is 639,512 samples/s",
        ),
    ],
)
def test_any_official_figure_in_another_unit_is_refused(
    row_id: str, unit: Unit, sentence: str
) -> None:
    """In Offline one query holds all samples, so queries/s are no samples/s there."""
    with pytest.raises(ValueError, match="is printed in") as error:
        published(BY_ID[row_id], unit)

    assert str(error.value) == sentence


def test_queries_of_server_are_samples_one_each() -> None:
    resnet = figure("A75.1")

    assert resnet.quantity == Quantity(value=681328.0, unit=Unit.QUERIES_PER_S)
    assert resnet.samples == Quantity(value=681328.0, unit=Unit.SAMPLES_PER_S)
    assert figure("A72.1").samples.unit is Unit.SAMPLES_PER_S


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "images_per_second"}, "unknown metric 'images_per_second'"),
        ({"metric": "latency_p99"}, "latency_p99 counts time, but 768,235 is in samples/s"),
        ({"metric": "tokens_per_usd"}, "tokens_per_usd counts tokens per money"),
        ({"better": Direction.LOWER}, "throughput is better when higher, not when lower"),
        ({"logged": 768240.0}, r"768,235 samples/s is no rounding of the logged 768,240"),
        ({"logged": math.nan}, "is no rounding of the logged nan"),
        ({"metric": "samples_per_joule"}, "by a wall meter, so samples_per_joule, which is by"),
        ({"result_field": None}, "an official MLPerf figure needs result_field"),
        ({"result_field": "result_validity"}, "is no result field"),
    ],
)
def test_a_contradiction_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figure("A38.1", **changes)


def test_directions_of_the_figures_are_the_metrics() -> None:
    assert figure("A38.1", better=Direction.HIGHER).better is Direction.HIGHER
    assert figure("B42.1", better=Direction.LOWER).better is Direction.LOWER
    with pytest.raises(ValueError, match="usd_per_gpu_hour is better when lower, not when higher"):
        figure("B42.1", better=Direction.HIGHER)


@pytest.mark.parametrize(
    ("row_id", "changes", "message"),
    [
        ("A38.1", {"workload": "resnet152"}, "unknown workload 'resnet152' in v4.1; known: resnet"),
        ("B7.1", {"workload": "llama-70b"}, "unknown workload 'llama-70b' in v4.1"),
        ("A55.1", {"scenario": "Server"}, "3d-unet has no scenario Server in v4.1; it has Offline"),
        ("A38.1", {"scenario": None}, "resnet50 has no scenario None in v4.1"),
        (
            "A38.1",
            {"result_field": "result_scheduled_samples_per_sec"},
            "resnet50 Offline in v4.1 is result_samples_per_second, not result_scheduled",
        ),
    ],
)
def test_what_the_round_has_not_is_refused(
    row_id: str, changes: dict[str, Any], message: str
) -> None:
    row = BY_ID[row_id]
    with pytest.raises(ValueError, match=message):
        published(row, unit_as_printed(row), **changes)


def test_scenarios_of_unofficial_figures_are_their_own() -> None:
    """A batch-1 stream is no MLPerf scenario, and nobody says it is."""
    stream = figure("B21.1")

    assert (stream.scenario, stream.batch, stream.origin.round) == (None, 1, None)


def test_a_figure_is_checked_by_its_own_round() -> None:
    row = BY_ID["A38.1"]
    given = {
        field.name: getattr(corrected(row), field.name) for field in dataclasses.fields(Published)
    }

    with pytest.raises(ValueError, match=r"a figure of v4\.1 cannot be checked by v5\.0"):
        Published.checked(results("v5.0"), **given)
    assert Published.checked(V41, **given) == corrected(row)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"round": None}, "needs round"),
        ({"division": None}, "needs division"),
        ({"availability": None}, "needs availability"),
        ({"availability": "preview"}, "source mlperf and availability preview contradict"),
        ({"source": Source.PREVIEW}, "source mlperf-preview and availability available contra"),
    ],
)
def test_an_official_origin_is_complete(given: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {
        "source": Source.MLPERF,
        "round": "v4.1",
        "division": "closed",
        "availability": "available",
    }

    Origin(**sound)
    Origin(source=Source.UNVERIFIED)
    with pytest.raises(ValueError, match=message):
        Origin(**{**sound, **given})


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_no_figure_is_negative_or_infinite(value: float) -> None:
    with pytest.raises(ValueError, match="must be finite, at least 0"):
        figure(
            "A38.1",
            printed=Printed(quantity=Quantity(value=value, unit=Unit.SAMPLES_PER_S), decimals=0),
        )


def test_metrics_by_unit() -> None:
    assert metric_of(Unit.QUERIES_PER_S) == metric_of(Unit.SAMPLES_PER_S) == "throughput"
    with pytest.raises(ValueError, match="no throughput and no efficiency in USD/h"):
        metric_of(Unit.USD_PER_H)
    assert [metric_named(name).name for name in (*METRICS, *PUBLISHED)] == [*METRICS, *PUBLISHED]


def test_a_file_holds_official_figures_of_one_round() -> None:
    for row_id in ("B10.1", "C37.1", "B21.1"):
        with pytest.raises(ValueError, match=r"this file is for official figures of v4\.1"):
            PublishedFile(purpose="", round="v4.1", source="", figures=(figure(row_id),))
    with pytest.raises(ValueError, match=r"mlperf of v4\.1; this file is for "):
        PublishedFile(purpose="", round="v5.0", source="", figures=(figure("A38.1"),))


# --- printed digits


@pytest.mark.parametrize(
    ("row_id", "digits", "between"),
    [
        ("A97.2", 1, (3.5, 4.5)),
        ("A103.2", 1, (2.5, 3.5)),
        ("A99.2", 1, (0.0015, 0.0025)),
        ("A100.2", 3, (111.5, 112.5)),
        ("A102.2", 2, (9.5, 10.5)),
        ("A74.1", 3, (2.015, 2.025)),
        ("A38.1", 6, (768234.5, 768235.5)),
        ("B43.3", 6, None),
    ],
)
def test_printed_digits_keep_their_rounding(
    row_id: str, digits: int, between: tuple[float, float] | None
) -> None:
    printed = figure(row_id).printed

    assert printed.digits == digits
    assert printed.between == (None if between is None else pytest.approx(between))


@given(st.integers(0, 10**12), st.integers(0, 6), st.booleans(), st.sampled_from(list(Unit)))
def test_a_printed_number_is_read_and_written_the_same(
    scaled: int, decimals: int, approximate: bool, unit: Unit
) -> None:
    value = float(f"{scaled}e-{decimals}")
    printed = Printed(
        quantity=Quantity(value=value, unit=unit), decimals=decimals, approximate=approximate
    )

    assert Printed.read(printed.text, unit) == printed


@given(st.floats(0, 1e6), st.integers(0, 6))
def test_a_value_rounds_to_its_own_print_and_to_no_other(value: float, decimals: int) -> None:
    printed = Printed.read(f"{value:,.{decimals}f}", Unit.SAMPLES_PER_S)

    assert printed.rounds(value)
    assert not printed.rounds(value + 1.1 * 10**-decimals)
    assert dataclasses.replace(printed, approximate=True).rounds(value + 1.1 * 10**-decimals)


@pytest.mark.parametrize(
    "text", ["", "~", "1,23", "1 234", "12,34.5", "-3", "+3", "1e3", "nan", ".5", "3..", "3x", "$3"]
)
def test_what_is_no_printed_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no printed number of tokens/s"):
        Printed.read(text, Unit.TOKENS_PER_S)


@pytest.mark.parametrize(
    "changes", [{"decimals": -1}, {"decimals": 1, "point": True}, {"decimals": 0}]
)
def test_digits_that_do_not_fit_the_value_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="decimals"):
        Printed(quantity=Quantity(value=2.25, unit=Unit.TIMES), **changes)


# --- comparability

SOMEBODY = Origin(source=Source.VENDOR)


@pytest.mark.parametrize(
    ("a", "b", "reasons"),
    [
        pytest.param(figure("A32.1"), figure("A33.1"), (), id="H200 over H100"),
        pytest.param(
            figure("A38.1"),
            figure("A42.1"),
            ("number of accelerators: 8 against 1",),
            id="count",
        ),
        pytest.param(
            figure("A38.1"),
            figure("A75.1"),
            ("scenario: Offline against Server", "Server rate: not stated against completed"),
            id="scenario",
        ),
        pytest.param(
            figure("A38.1"),
            figure("A100.1"),
            ("power setting: not stated against MaxQ",),
            id="power setting",
        ),
        pytest.param(
            figure("A29.1"),
            figure("A97.1"),
            ("power setting: 1000 W against MaxQ",),
            id="two power settings",
        ),
        pytest.param(
            figure("A30.1"),
            figure("B11.1"),
            (
                "metric: tokens/s against samples/s",
                "accuracy target: 99.9 against not stated",
                "division: closed against not stated",
                "source: mlperf against unverified",
            ),
            id="unverified samples/s against official tokens/s",
        ),
        pytest.param(
            figure("A28.1"),
            figure("A31.1"),
            ("source: mlperf-preview against mlperf",),
            id="preview",
        ),
        pytest.param(
            figure("A97.2", origin=SOMEBODY),
            figure("A97.2", origin=SOMEBODY, metric="tokens_per_joule"),
            ("metric: tokens/s/W of the whole system against tokens/J",),
            id="wall meter against the accelerators' own counters",
        ),
        pytest.param(
            figure("A38.1"),
            moved("A38.1", division="open"),
            ("division: closed against open",),
            id="division",
        ),
        pytest.param(
            figure("C37.1"),
            moved("C37.1", round="v4.1"),
            ("Server rate: scheduled against completed",),
            id="scheduled against completed",
        ),
        pytest.param(figure("C37.2"), moved("C37.2", round="v4.1"), (), id="rounds in Offline"),
        pytest.param(figure("C37.1"), figure("C38.1"), (), id="watts of two accelerators"),
        pytest.param(
            figure("C37.1"),
            figure("C37.1", accelerator=Accelerator(name="H200", count=8, power="1000 W")),
            ("power setting: 700 W against 1000 W",),
            id="watts of one accelerator",
        ),
        pytest.param(
            figure("B7.1"),
            figure("B7.2"),
            ("number of accelerators: not stated against not stated",),
            id="nobody says how many",
        ),
        pytest.param(
            figure("B19.5"),
            figure("B35.1"),
            ("batch: 1 against not stated",),
            id="batch",
        ),
        pytest.param(
            figure("A46.1"),
            figure("A46.1", variant="99.9"),
            ("accuracy target: 99 against 99.9",),
            id="accuracy target",
        ),
        pytest.param(
            figure("A38.1"),
            figure("A43.1"),
            ("workload: resnet50 against retinanet",),
            id="workload",
        ),
    ],
)
def test_why_two_figures_do_not_compare(
    a: Published, b: Published, reasons: tuple[str, ...]
) -> None:
    """Every reason at once, the same both ways round; without one there is a ratio."""
    assert why_not_comparable(a, b) == reasons
    assert len(why_not_comparable(b, a)) == len(reasons)
    if reasons:
        with pytest.raises(ValueError, match="cannot be compared: ") as error:
            ratio(a, b)
        assert str(error.value).endswith("; ".join(reasons))
    else:
        assert ratio(a, b).value * ratio(b, a).value == pytest.approx(1.0)


def test_llama2_was_reported_as_completed_in_v4_0_already() -> None:
    assert figure("A62.1").server_rate == "completed"
    assert moved("A62.1", round="v4.0").server_rate == "completed"
    assert moved("A75.1", round="v4.0").server_rate == "scheduled"
    assert moved("A75.1", round="v3.1").server_rate == "scheduled"
    assert moved("A75.1", round="v10.0").server_rate == "completed"
    assert figure("A38.1").server_rate is None


def test_a_ratio_of_logged_values_is_exact_one_of_digits_is_a_range() -> None:
    exact = ratio(figure("A32.1"), figure("A33.1"))
    by_digits = ratio(figure("C37.1"), figure("C38.1"))

    assert exact == Ratio(value=59334.8 / 52817.7, low=exact.value, high=exact.value)
    assert by_digits.value == pytest.approx(13.8 / 4.9)
    assert (by_digits.low, by_digits.high) == pytest.approx((13.75 / 4.95, 13.85 / 4.85))


def test_one_digit_leaves_much_open() -> None:
    """4 tokens/s/W printed with one digit is anything from 3.5 to 4.5."""
    coarse = figure("A97.2", logged=None)
    found = ratio(coarse, coarse)

    assert found.value == 1.0
    assert (found.low, found.high) == pytest.approx((3.5 / 4.5, 4.5 / 3.5))


def test_nobody_knows_the_range_of_an_approximate_figure() -> None:
    assert ratio(figure("B9.1"), figure("B10.1")) == Ratio(value=210 / 118.5, low=None, high=None)


def test_queries_and_samples_of_server_compare_as_samples() -> None:
    """SDXL is printed in samples/s, but per watt in queries/s/W: one query, one sample."""
    one = figure("A112.1")
    other = figure(
        "A112.1",
        printed=Printed.read("26", Unit.SAMPLES_PER_S),
        logged=None,
    )

    assert one.quantity.unit is Unit.QUERIES_PER_S
    assert ratio(other, one).value == pytest.approx(26 / 12.708)


def test_nothing_compares_with_zero() -> None:
    zero = figure("B42.1", printed=Printed.read("$0.00/hr", Unit.USD_PER_H))

    with pytest.raises(ValueError, match="is 0: nothing can be compared with it"):
        ratio(figure("B42.1"), zero)
    barely = figure("B42.1", printed=Printed.read("$1/hr", Unit.USD_PER_H))
    assert ratio(zero, barely) == Ratio(value=0.0, low=0.0, high=0.01)


@pytest.mark.parametrize(
    ("row_id", "text"),
    [("A29.1", "8xH200"), ("A28.1", "B200"), ("B7.1", "B200"), ("B12.1", "8xTPU v5e")],
)
def test_accelerators_in_words(row_id: str, text: str) -> None:
    assert str(figure(row_id).accelerator) == text
