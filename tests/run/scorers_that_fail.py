"""Scorers and data sets that misbehave while they score, each in one way."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.judge.inputs import Leverage


class Slow:
    """Data whose references take a while each; `hangs` at the third, if it is asked to.

    Where it is `grouped`, four samples each belong together.
    """

    digest = "slow"

    def __init__(
        self, *, samples: int = 8, takes_s: float = 0.0, hangs: bool = False, grouped: bool = False
    ) -> None:
        self._grouped = grouped
        self._samples, self._takes_s, self._hangs = samples, takes_s, hangs

    def __len__(self) -> int:
        return self._samples

    def input(self, index: int) -> int:
        return index

    def group(self, index: int) -> str | None:
        return f"document {index // 4}" if self._grouped else None

    def reference(self, index: int) -> int:
        if self._hangs and index == 2:
            threading.Event().wait()
        time.sleep(self._takes_s)
        return index


LEVERAGE = Leverage(seen=0.75, df=6.5, hidden=1.0)
"""What the scorer tells."""


class Exact:
    """Read all outputs, then all references; `how` selects the behaviour in between."""

    def __init__(self, *, model: str | None, how: str = "well") -> None:
        self._how = how

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        output_list = list(outputs)
        getattr(self, self._how)()
        same = [float(a == b"%d" % b) for a, b in zip(output_list, references, strict=True)]
        return Scores(
            per_sample={"same": same},
            aggregate={"same": sum(same) / len(same)},
            leverage={"same": LEVERAGE},
        )

    def well(self) -> None:
        """Do nothing else."""

    def waits(self) -> None:
        threading.Event().wait()

    def computes_for_ever(self) -> None:
        while True:
            pass

    def prints(self) -> None:
        for number in range(8):
            time.sleep(0.65)
            print("epoch", number)

    def crashes(self) -> None:
        ctypes.string_at(8)

    def exits(self) -> None:
        raise SystemExit(0)

    def lacks(self) -> None:
        raise UnavailableError("the tokenizer is not here; set MODELS")

    def unprintable(self) -> None:
        class Unprintable(RuntimeError):
            def __str__(self) -> str:
                raise ValueError

        raise Unprintable

    def speaks(self) -> None:
        os.write(1, b'{"event": "done"}\n')
        print('{"event": "error"}', flush=True)
