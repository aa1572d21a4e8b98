"""How near decoding comes to what the memory of each GPU allows, which is read once a step."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.gpu import models, shapes
from benchmarks.gpu.load import torch_on
from benchmarks.gpu.offline import Prompts
from benchmarks.gpu.real import free
from benchmarks.gpu.setting import Answer, Gpu, Part, Setting, Table, show
from pytest_mlperf.core.roofline.bounds import decode_rate, hardware
from pytest_mlperf.core.roofline.work import Circumstances
from pytest_mlperf.hardware.specs import find_gpu

TARGET = 0.6
"""Of the limit, which the engine is to reach on a GPU."""

COLUMNS = (
    "GPU",
    "way",
    "batch",
    "tokens/s",
    "ms per step",
    "memory limit, tokens/s",
    "of it, %",
    "tokens as by generate, %",
)
RUNS = 3


@dataclass(kw_only=True)
class Steps:
    """When a step's tokens reached the host, and which they were."""

    at_s: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    def take(self, tokens: list[int]) -> bool:
        """Take a token of each row; all steps are needed."""
        self.at_s.append(time.perf_counter())
        self.tokens.append(tokens)
        return True

    def put(self, value: Any) -> None:
        """Take what `generate` streams: the prompts first."""
        if value.ndim == 1:
            self.take(value.tolist())

    def end(self) -> None:
        """Nothing is held back."""

    @property
    def step_s(self) -> float:
        """Mean time of a step after the prompts."""
        return (self.at_s[-1] - self.at_s[0]) / (len(self.at_s) - 1)


PLAIN, COMPILED, GENERATE = "static", "compiled", "generate"

COMPILING_S = 30.0
"""With less time left the compiled step is not begun: what is there is not to be cut off."""


def part(setting: Setting) -> Part:
    """Llama 2 7B in bfloat16 with random weights, on one GPU after the other."""
    answer = Answer(
        tables=[Table(title="Decoding beside the memory limit", columns=COLUMNS)],
        values={"decode": [], "target": TARGET},
        notes=[
            "Without prompts: the time of steps alone. The limit reads all weights, and of every "
            "sequence the keys and values that are there at half of its answer, once a step. "
            f"Target of the compiled step: at least {TARGET:.0%} of it. In bfloat16 kernels round "
            "differently, so that tokens may be others than by generate, and what follows them too."
        ],
    )
    end_s, longest_s, broken = time.monotonic() + setting.seconds, 0.0, set[str]()
    for number, gpu in enumerate(setting.gpus):
        begin_s = time.monotonic()
        if begin_s + longest_s > end_s:
            answer.tables[0].rows.append(_row(f"{number}: {gpu.product}", "not run: no time left"))
            yield answer
            continue
        device = setting.device if setting.simulated else f"{setting.device}:{number}"
        # A GPU, or a way, that breaks, as for want of memory, says so; the others are still
        # measured.
        try:
            model = _Model(setting, gpu, device)
        except Exception as error:
            answer.failures.append(f"GPU {number}: {_reason(error)}")
            yield answer
            continue
        for way in _ways(number, setting, broken, end_s):
            if way == COMPILED and _late(end_s):
                answer.tables[0].rows.append(
                    _row(f"{number}: {gpu.product}", f"{way}: not run: no time left")
                )
                continue
            try:
                for values in model.measure(way):
                    answer.values["decode"].append({"gpu": number, **values})
                    answer.tables[0].rows.append(_row_of(f"{number}: {gpu.product}", values))
                    yield answer
            except Exception as error:
                broken.add(way)
                answer.failures.append(f"GPU {number}, {way}: {_reason(error)}")
                yield answer
        del model
        with contextlib.suppress(RuntimeError):  # of a GPU that is lost
            free(setting)
        if number:  # the first decodes in more ways, and what it compiled is kept
            longest_s = max(longest_s, time.monotonic() - begin_s)
        yield answer


def _late(end_s: float) -> bool:
    """Whether compiling would take all that is left."""
    return time.monotonic() + COMPILING_S > end_s


def _ways(number: int, setting: Setting, broken: set[str], end_s: float) -> Sequence[str]:
    """Return how a GPU is to decode: the first in all ways, the surest one first."""
    if number == 0:
        # On a CPU the compiler takes a minute.
        return (GENERATE, PLAIN) if setting.simulated else (GENERATE, PLAIN, COMPILED)
    plain = setting.simulated or COMPILED in broken or _late(end_s)
    return (PLAIN,) if plain else (COMPILED,)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class _Model:
    """Llama 2 7B with random weights on one GPU."""

    def __init__(self, setting: Setting, gpu: Gpu, device: str) -> None:
        """Load it.

        Raises:
            MemoryError: The GPU is too small.
        """
        from pytest_mlperf.engines.torch import _checkpoint

        small = setting.simulated
        self._size, self._precision = ("tiny", "fp32") if small else ("7B", "bf16")
        self._prompt, self._new, self._batches = (16, 24, (1, 4)) if small else (128, 128, (1, 128))
        if not small and (gpu.memory_gib or 0) < shapes.WEIGHT_GIB[self._size]:
            raise MemoryError(
                f"{self._size} needs {shapes.WEIGHT_GIB[self._size]:g} GiB of GPU memory"
            )
        self._gpu, self._device, self._simulated = gpu, device, small
        self._torch = torch_on(setting.device)
        folder = models.write_llama(
            setting.path / f"decode-{device.replace(':', '-')}-{gpu.uuid}", self._size
        )
        options = self._options(PLAIN)
        self._model = _checkpoint.open_model(folder, options, self._precision).model
        self._generated: dict[int, list[list[int]]] = {}

    def _options(self, way: str) -> Any:
        from pytest_mlperf.engines.torch._base import TorchOptions

        return TorchOptions(
            device=self._device,
            weights="dummy",
            batch_size=max(self._batches),
            batching="static",
            decode=GENERATE if way == GENERATE else "static",
            compile=way == COMPILED,
        )

    def measure(self, way: str) -> Iterator[dict[str, Any]]:
        """Yield what each batch reached."""
        from pytest_mlperf.engines.llm.generation import Generation
        from pytest_mlperf.engines.torch._batching import generation_config
        from pytest_mlperf.engines.torch._decode import open_decoder

        torch = self._torch
        generation = Generation(max_new_tokens=self._new, ignore_eos=True)
        begin_s = time.monotonic()
        # Graphs of another GPU are of no use, and torch keeps only so many.
        torch.compiler.reset()
        decoder, words = open_decoder(self._model, generation, self._options(way))
        opened_s = time.monotonic() - begin_s

        def run(ids: Any, mask: Any, steps: Steps) -> None:
            if decoder is not None:
                decoder.run(ids, mask, steps.take)
                return
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=generation_config(generation),
                streamer=steps,
            )

        vocabulary = models.LLAMA[self._size]["vocab_size"]
        for batch in self._batches:
            data = Prompts(samples=batch, tokens=self._prompt, vocabulary=vocabulary)
            rows = [data.input(index) for index in range(batch)]
            ids = torch.tensor(rows, device=self._device)
            given = functools.partial(run, ids, torch.ones_like(ids))
            with torch.inference_mode():
                runs = _runs(given, RUNS, warm=1) if decoder else _runs(given, 1)
            step_s = median(steps.step_s for steps in runs)
            tokens, limit = runs[-1].tokens, self._limit(batch)
            equal = self._equal(batch, tokens)
            if way == GENERATE:
                self._generated[batch] = tokens
            yield {
                "product": self._gpu.product,
                "way": words,
                "batch": batch,
                "tokens_per_second": batch / step_s,
                "step_s": step_s,
                "limit": limit,
                "share": limit and batch / step_s / limit,
                "equal_tokens": equal,
                "opened_s": opened_s,
            }

    def _limit(self, batch: int) -> float | None:
        spec = find_gpu(self._gpu.product, memory_gib=self._gpu.memory_gib)
        if spec is None:
            return None
        seen = Circumstances(
            precision=self._precision, kv=None if self._simulated else self._precision
        )
        work = shapes.llama_work(models.LLAMA[self._size])
        context = self._prompt + self._new / 2
        return decode_rate(work, hardware(spec, seen), batch=batch, context=context)

    def _equal(self, batch: int, tokens: list[list[int]]) -> float | None:
        """Return the share of tokens that are those of generate, if that was run before."""
        if batch not in self._generated:
            return None
        ways = zip(tokens, self._generated[batch], strict=True)
        pairs = [a == b for rows in ways for a, b in zip(*rows, strict=True)]
        return sum(pairs) / len(pairs)


def _runs(generate: Callable[[Steps], None], count: int, *, warm: int = 0) -> list[Steps]:
    """Run so many times to warm up and to capture, then so many that count."""
    runs = [Steps() for _ in range(warm + count)]
    for steps in runs:
        generate(steps)
    return runs[warm:]


def _row(name: str, words: str) -> tuple[str, ...]:
    return (name, words, *[""] * (len(COLUMNS) - 2))


def _row_of(name: str, values: dict[str, Any]) -> tuple[str, ...]:
    share, equal = values["share"], values["equal_tokens"]
    return (
        name,
        values["way"],
        str(values["batch"]),
        show(values["tokens_per_second"]),
        show(1000 * values["step_s"]),
        show(values["limit"]),
        show(None if share is None else 100 * share),
        "" if equal is None else show(100 * equal, 4),
    )
