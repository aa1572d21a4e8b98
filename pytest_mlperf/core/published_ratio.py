"""When two printed figures may be divided by each other, and what the digits leave open."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.core.published import Published, metric_named
from pytest_mlperf.core.units import Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One figure over another.

    Attributes:
        value: By the logged values where they are known, else by the printed ones.
        low, high: What the rounding of the printed values allows; None: nobody knows, because one
            is approximate, or may be 0.
    """

    value: float
    low: float | None
    high: float | None


def ratio(a: Published, b: Published) -> Ratio:
    """Return a over b.

    Raises:
        ValueError: They cannot be compared; it says why.
    """
    if reasons := why_not_comparable(a, b):
        raise ValueError(f"{_short(a)} and {_short(b)} cannot be compared: {'; '.join(reasons)}")
    unit = b.samples.unit
    over, under = _value(a, unit), _value(b, unit)
    if not under:
        raise ValueError(f"{_short(b)} is 0: nothing can be compared with it")
    low = high = None
    above, below = _between(a, unit), _between(b, unit)
    if above and below:
        low = above[0] / below[1]
        high = above[1] / below[0] if below[0] else None
    return Ratio(value=over / under, low=low, high=high)


def why_not_comparable(a: Published, b: Published) -> tuple[str, ...]:
    """Return every reason why one figure says nothing about the other; none: they compare."""
    titles = [metric_named(figure.metric).title for figure in (a, b)]
    pairs = {
        "metric": (titles[0], titles[1]),
        "workload": (a.workload, b.workload),
        "accuracy target": (a.variant, b.variant),
        "scenario": (a.scenario, b.scenario),
        "Server rate": (a.server_rate, b.server_rate),
        "batch": (a.batch, b.batch),
        "division": (a.origin.division, b.origin.division),
        "source": (a.origin.source.value, b.origin.source.value),
    }
    reasons = [
        f"{what}: {_stated(one)} against {_stated(other)}"
        for what, (one, other) in pairs.items()
        if one != other
    ]
    return (*reasons, *_counts(a, b), *_power(a, b))


def _counts(a: Published, b: Published) -> tuple[str, ...]:
    counts = a.accelerator.count, b.accelerator.count
    if None in counts:
        return (f"number of accelerators: {_stated(counts[0])} against {_stated(counts[1])}",)
    if counts[0] != counts[1]:
        return (f"number of accelerators: {counts[0]} against {counts[1]}",)
    return ()


def _power(a: Published, b: Published) -> tuple[str, ...]:
    """Compare power settings; watts belong to their accelerator, modes do not."""
    one, other = a.accelerator, b.accelerator
    watts = all(power is not None and power.endswith(" W") for power in (one.power, other.power))
    if one.power == other.power or (watts and one.name != other.name):
        return ()
    return (f"power setting: {_stated(one.power)} against {_stated(other.power)}",)


def _stated(value: object) -> str:
    return "not stated" if value is None else str(value)


def _short(figure: Published) -> str:
    return f"{figure.printed.text} {figure.quantity.unit} of {figure.accelerator}"


def _factor(figure: Published, unit: Unit) -> float:
    """Return what turns a printed value into `unit`; queries are samples as the scenario says."""
    samples = figure.samples
    printed = figure.quantity.value
    per_query = samples.value / printed if printed else 1.0
    return per_query * (samples.unit.factor / unit.factor)


def _value(figure: Published, unit: Unit) -> float:
    value = figure.quantity.value if figure.logged is None else figure.logged
    return value * _factor(figure, unit)


def _between(figure: Published, unit: Unit) -> tuple[float, float] | None:
    """Return lowest and highest value; one and the same where the logged value is known."""
    if figure.logged is not None:
        return _value(figure, unit), _value(figure, unit)
    if figure.printed.between is None:
        return None
    low, high = figure.printed.between
    factor = _factor(figure, unit)
    return low * factor, high * factor
