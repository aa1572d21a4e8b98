"""Work for a device, in measured pieces: matrix products in bursts, and a loop that decodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.energy.readings import Reading

PIECE_S = 0.0005
"""A piece of work is about so long: bursts of 5 ms are ten of them."""

STEPS = 8
"""Between two looks at the clock."""

SPIN_S = 0.002
"""The last moments before a burst are not slept, for sleep comes back late."""


def torch_on(device: str) -> Any:
    """Return torch; on a CPU with one thread, so that the sampler has a core for itself."""
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(20_240_828)
    return torch


def synchroniser(device: str) -> Callable[[], None]:
    """Return what waits until the device has done all it was given."""
    torch = torch_on(device)
    return torch.cuda.synchronize if device == "cuda" else lambda: None


@dataclass(kw_only=True)
class Products:
    """Square matrix products of one size, a piece at a time.

    Attributes:
        size: Rows and columns.
        dtype: torch's name of their type.
        flop: Of a piece.
    """

    size: int
    dtype: str
    flop: float
    _multiply: Callable[[], None]
    _wait: Callable[[], None]

    @classmethod
    def on(cls, device: str) -> Products:
        """Make matrices of random numbers and find how many products last PIECE_S."""
        torch = torch_on(device)
        size, dtype = (4096, torch.bfloat16) if device == "cuda" else (192, torch.float32)
        # Zeros would draw far less power.
        a, b, c = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
        wait = synchroniser(device)
        products = cls(
            size=size,
            dtype=str(dtype).removeprefix("torch."),
            flop=2.0 * size**3,
            _multiply=lambda: torch.mm(a, b, out=c),
            _wait=wait,
        )
        warm = time.monotonic() + 0.5
        while time.monotonic() < warm:
            products.piece()
        begin = time.perf_counter()
        for _ in range(50):
            products._multiply()
        wait()
        once_s = (time.perf_counter() - begin) / 50
        times = max(1, round(PIECE_S / once_s))
        one = products._multiply

        def several() -> None:
            for _ in range(times):
                one()

        products._multiply, products.flop = several, times * 2.0 * size**3
        return products

    def piece(self) -> None:
        """Do a piece and wait for it."""
        self._multiply()
        self._wait()

    def until(self, end_s: float) -> int:
        """Do pieces until a monotonic time; return how many."""
        done = 0
        while time.monotonic() < end_s:
            self.piece()
            done += 1
        return done

    def rate(self, seconds: float) -> float:
        """Return FLOP/s of so many seconds."""
        begin = time.monotonic()
        done = self.until(begin + seconds)
        return done * self.flop / (time.monotonic() - begin)

    def bursts(self, times: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Work in each (begin, end) of monotonic times; return when it really began and ended."""
        found = []
        for begin_s, end_s in times:
            wait_until(begin_s)
            began_s = time.monotonic()
            self.until(end_s - PIECE_S / 2)
            found.append((began_s, time.monotonic()))
        return found


def wait_until(time_s: float) -> None:
    """Sleep until a monotonic time, and be there in time."""
    left = time_s - time.monotonic()
    if left > SPIN_S:
        time.sleep(left - SPIN_S)
    while time.monotonic() < time_s:
        pass


def square(begin_s: float, period_s: float, seconds: float) -> list[tuple[float, float]]:
    """Return bursts of half a period each."""
    return [
        (begin_s + i * period_s, begin_s + (i + 0.5) * period_s)
        for i in range(int(seconds / period_s))
    ]


class Launcher:
    """Kernels that are so short that starting them is all that takes time."""

    def __init__(self, device: str) -> None:
        """Make what they work on."""
        torch = torch_on(device)
        self._small = torch.zeros(16, device=device)
        self._wait = synchroniser(device)

    def rate(self, seconds: float) -> float:
        """Return kernels per second of so many seconds."""
        begin, done = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            for _ in range(200):
                self._small.add_(1.0)
            self._wait()
            done += 200
        return done / (time.monotonic() - begin)


@dataclass(kw_only=True)
class Decoder:
    """A loop that reads all of its weights for each token of a few sequences, as decoding does.

    Attributes:
        layers, width: Square layers, and the elements of a token.
        sequences: Decoded together.
        weight_bytes: Of all layers.
    """

    layers: int
    width: int
    sequences: int
    weight_bytes: float
    _step: Callable[[], None]
    _wait: Callable[[], None]

    @classmethod
    def on(cls, device: str) -> Decoder:
        """Make weights of 4.3 GB on a GPU, small ones on a CPU."""
        torch = torch_on(device)
        cuda = device == "cuda"
        layers, width, sequences = (32, 8192, 64) if cuda else (8, 256, 4)
        dtype = torch.bfloat16 if cuda else torch.float32
        with torch.inference_mode():
            scale = width**-0.5
            weights = [
                torch.randn(width, width, device=device, dtype=dtype).mul_(scale)
                for _ in range(layers)
            ]
            first = torch.randn(sequences, width, device=device, dtype=dtype)

        def step() -> None:
            with torch.inference_mode():
                token = first
                for weight in weights:
                    token = token @ weight

        size = sum(weight.numel() * weight.element_size() for weight in weights)
        return cls(
            layers=layers,
            width=width,
            sequences=sequences,
            weight_bytes=float(size),
            _step=step,
            _wait=synchroniser(device),
        )

    def run(self, seconds: float) -> list[Reading]:
        """Decode for so many seconds; return how many tokens there were at monotonic times."""
        marks, tokens = [Reading(time_s=time.monotonic(), value=0.0)], 0
        while marks[-1].time_s < marks[0].time_s + seconds:
            for _ in range(STEPS):
                self._step()
            self._wait()
            tokens += STEPS * self.sequences
            marks.append(Reading(time_s=time.monotonic(), value=float(tokens)))
        return marks
