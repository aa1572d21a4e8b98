"""A quantity as somebody printed it: how many digits, and what they leave open."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from pytest_mlperf.core.units import Quantity, Unit

_AROUND = {Unit.USD_PER_H: ("$", "/hr"), Unit.TIMES: ("", "x")}
"""What stands before and after the digits of these units."""

_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)(?:(\.)(\d*))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """A printed quantity; the digits say how far it can be trusted.

    Attributes:
        quantity: Its value is exactly what the digits say.
        decimals: Digits printed after the point.
        approximate: "~" was printed before it.
        point: A point was printed that no digit follows: "3.".

    Raises:
        ValueError: The value has more digits than were printed, or the point cannot be.
    """

    quantity: Quantity
    decimals: int
    approximate: bool = False
    point: bool = False

    def __post_init__(self) -> None:
        if self.decimals < 0 or (self.point and self.decimals):
            raise ValueError(
                f"decimals is {self.decimals}, point is {self.point}; decimals must be at least 0, "
                "and a bare point has none"
            )
        if float(f"{self.quantity.value:.{self.decimals}f}") != self.quantity.value:
            raise ValueError(
                f"{self.quantity} has more digits than the {self.decimals} decimals printed"
            )

    @classmethod
    def read(cls, text: str, unit: Unit) -> Self:
        """Read "~169,600", "$3.29/hr", "1.0x", "3."; commas separate thousands.

        Raises:
            ValueError: It is no such number.
        """
        before, after = _AROUND.get(unit, ("", ""))
        bare = text.removeprefix("~")
        matched = _NUMBER.fullmatch(bare.removeprefix(before).removesuffix(after))
        if matched is None:
            raise ValueError(
                f"{text!r} is no printed number of {unit}; they are written as "
                f'"{before}1,234.5{after}", with "~" before it where it is approximate'
            )
        whole, point, decimals = matched[1], matched[2] or "", matched[3] or ""
        return cls(
            quantity=Quantity(value=float(f"{whole.replace(',', '')}.{decimals}"), unit=unit),
            decimals=len(decimals),
            approximate=bare != text,
            point=bool(point) and not decimals,
        )

    @property
    def text(self) -> str:
        """The text as printed, thousands separated by commas."""
        before, after = _AROUND.get(self.quantity.unit, ("", ""))
        digits = f"{self.quantity.value:,.{self.decimals}f}{'.' if self.point else ''}"
        return f"{'~' if self.approximate else ''}{before}{digits}{after}"

    @property
    def digits(self) -> int:
        """Significant digits printed: 1 of "4" and of "0.002"."""
        return len(str(round(self.quantity.value * 10**self.decimals)))

    @property
    def between(self) -> tuple[float, float] | None:
        """Lowest and highest value that is rounded to this text; None where it is approximate."""
        if self.approximate:
            return None
        half = 0.5 * 10.0**-self.decimals
        return max(0.0, self.quantity.value - half), self.quantity.value + half

    def rounds(self, value: float) -> bool:
        """Tell whether a value, in the same unit, may have been printed like this."""
        if self.between is None:
            return True
        low, high = self.between
        slack = 4 * math.ulp(high)
        return low - slack <= value <= high + slack
