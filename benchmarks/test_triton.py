"""What the triton engine costs beside threads that use tritonclient by hand: `make bench`.

A server answers at once, in a process of its own. Both ways send the same images with the same
number of requests under way, in turn; compared is the processor time of this process for a request,
the least of some rounds, because what else the machine does can only add to it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_mlperf.adapters.engines.triton import TritonEngine
from tests.adapters.engines.onnxruntime.models import drawn
from tests.adapters.engines.onnxruntime.recorder import Listed
from tests.adapters.engines.recording import Tokenless

pytest.importorskip("tritonclient.http")
pytest.importorskip("tritonclient.grpc")

ECHO = Path(__file__).with_name("kserve_echo.py")
SERVE = [sys.executable, str(ECHO), "{port}", "{grpc_port}"]

IMAGES = [drawn(index, 3, 32, 32) for index in range(600)]
UNDER_WAY = 4
ROUNDS = 7

AT_MOST = 2.0
"""Times the processor time of the way by hand that the engine may take."""


def by_engine(opened: TritonEngine) -> None:
    """Send every image as LoadGen has them sent, as one list."""
    sink = Tokenless(wants_output=True, expected=len(IMAGES))
    opened.submit(range(len(IMAGES)), range(len(IMAGES)), sink)
    sink.wait_for_end()
    assert sink.error is None


def by_hand(netloc: str, module: Any) -> None:
    """Let each thread send its share with a client of its own, and find the class."""
    found = []

    def work(place: int) -> None:
        # Over HTTP, a client works in the thread that made it only.
        client = module.InferenceServerClient(netloc)
        for image in IMAGES[place::UNDER_WAY]:
            given = module.InferInput("image", [1, 3, 32, 32], "FP32")
            given.set_data_from_numpy(image[None])
            wanted = [module.InferRequestedOutput("logits")]
            answer = client.infer("echo", [given], outputs=wanted)
            found.append(answer.as_numpy("logits").argmax(axis=-1).tobytes())
        client.close()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(UNDER_WAY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(IMAGES)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_costs_little_more_than_by_hand(
    benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    """Checks of what comes back, counts and reports included."""
    module = pytest.importorskip(f"tritonclient.{protocol}")
    opened = TritonEngine(
        dataset=Listed(IMAGES),
        model=None,
        precision="fp32",
        served_model="echo",
        protocol=protocol,
        serve=SERVE,
        concurrency=UNDER_WAY,
    )
    spent: dict[str, list[tuple[float, float]]] = {"engine": [], "by hand": []}
    with opened:
        opened.load_samples(range(len(IMAGES)))
        address = opened._service._address
        netloc = f"{address.host}:{address.port}"
        ways: dict[str, Callable[[], None]] = {
            "engine": lambda: by_engine(opened),
            "by hand": lambda: by_hand(netloc, module),
        }

        def turn() -> None:
            for name, run in ways.items():
                begun_s, cpu_s = perf_counter(), process_time()
                run()
                spent[name].append((process_time() - cpu_s, perf_counter() - begun_s))

        turn()
        benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)  # type: ignore[no-untyped-call]
    least = {name: min(cpu for cpu, _ in found) / len(IMAGES) for name, found in spent.items()}
    ratio = least["engine"] / least["by hand"]
    benchmark.extra_info.update({**least, "ratio": ratio, "target": AT_MOST})
    with capsys.disabled():
        print(f"\n{protocol}, {UNDER_WAY} requests under way, least of {ROUNDS} rounds:")
        for name, found in spent.items():
            rate = len(IMAGES) / min(wall for _, wall in found)
            print(f"  {name:<8} {1e6 * least[name]:6.0f} µs of processor, {rate:6,.0f} requests/s")
        print(f"  engine : by hand = {ratio:.2f}, target <= {AT_MOST}")
    assert ratio <= AT_MOST
