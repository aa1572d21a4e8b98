"""How near decoding comes to what the memory of each GPU allows, which is read once a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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


def part(setting: Setting) -> Part:
    """Llama 2 7B in bfloat16 with random weights, on one GPU after the other."""
    began_s, longest_s = time.monotonic(), 0.0
    answer = Answer(
        tables=[Table(title="Decoding beside the memory limit", columns=COLUMNS)],
        values={"decode": [], "target": TARGET},
        notes=[
            "Without prompts: the time of steps alone. The limit reads all weights, and of every "
            "sequence the keys and values that are there at half of its answer, once a step. "
            f"Target of the static cache: at least {TARGET:.0%} of it. In bfloat16 kernels round "
            "differently, so that tokens may be others than by generate, and what follows them too."
        ],
    )
    for number, gpu in enumerate(setting.gpus):
        begin_s = time.monotonic()
        if begin_s - began_s + longest_s > setting.seconds:
            answer.tables[0].rows.append(
                (gpu.product, "not run: no time left", *[""] * (len(COLUMNS) - 2))
            )
            yield answer
            continue
        try:
            device = setting.device if setting.simulated else f"{setting.device}:{number}"
            for values in _measure(setting, gpu, device, with_generate=number == 0):
                answer.values["decode"].append({"gpu": number, **values})
                answer.tables[0].rows.append(_row(f"{number}: {gpu.product}", values))
                yield answer
        # A GPU that breaks, as for want of memory, says so; the others are still measured.
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            answer.failures.append(f"GPU {number}: {reason}")
        free(setting)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        yield answer


def _measure(
    setting: Setting, gpu: Gpu, device: str, *, with_generate: bool
) -> Iterator[dict[str, Any]]:
    """Yield a row of each way and batch."""
    from pytest_mlperf.engines.llm.generation import Generation
    from pytest_mlperf.engines.torch import _checkpoint, _decode
    from pytest_mlperf.engines.torch._base import TorchOptions
    from pytest_mlperf.engines.torch._batching import generation_config

    torch, small = torch_on(setting.device), setting.simulated
    size, precision = ("tiny", "fp32") if small else ("7B", "bf16")
    prompt, new, batches = (16, 24, (1, 4)) if small else (128, 128, (1, 128))
    if not small and (gpu.memory_gib or 0) < shapes.WEIGHT_GIB[size]:
        raise MemoryError(f"{size} needs {shapes.WEIGHT_GIB[size]:g} GiB of GPU memory")
    folder = models.write_llama(
        setting.path / f"decode-{device.replace(':', '-')}-{gpu.uuid}", size
    )
    options = TorchOptions(device=device, weights="dummy", batch_size=max(batches))
    loaded = _checkpoint.open_model(folder, options, precision).model
    generation = Generation(max_new_tokens=new, ignore_eos=True)
    decoder, words = _decode.open_decoder(loaded, generation, options)
    if decoder is None:
        raise RuntimeError(words)
    work, spec = (
        shapes.llama_work(models.LLAMA[size]),
        find_gpu(gpu.product, memory_gib=gpu.memory_gib),
    )
    seen = Circumstances(precision=precision, kv=None if small else precision)
    for batch in batches:
        data = Prompts(samples=batch, tokens=prompt, vocabulary=models.LLAMA[size]["vocab_size"])
        ids = torch.tensor([data.input(index) for index in range(batch)], device=device)
        mask = torch.ones_like(ids)

        def static(steps: Steps, ids: Any = ids, mask: Any = mask) -> None:
            decoder.run(ids, mask, steps.take)

        def generate(steps: Steps, ids: Any = ids, mask: Any = mask) -> None:
            config = generation_config(generation)
            loaded.generate(
                input_ids=ids, attention_mask=mask, generation_config=config, streamer=steps
            )

        with torch.inference_mode():
            runs = {words: _runs(static, RUNS)}
            if with_generate:
                runs["generate"] = _runs(generate, 1)
        equal = None
        if with_generate:
            ways = zip(*(runs[way][-1].tokens for way in runs), strict=True)
            pairs = [a == b for rows in ways for a, b in zip(*rows, strict=True)]
            equal = sum(pairs) / len(pairs)
        limit = None
        if spec is not None:
            limit = decode_rate(work, hardware(spec, seen), batch=batch, context=prompt + new / 2)
        for way, each in runs.items():
            step_s = median(steps.step_s for steps in each)
            rate = batch / step_s
            yield {
                "product": gpu.product,
                "way": way,
                "batch": batch,
                "tokens_per_second": rate,
                "step_s": step_s,
                "limit": limit,
                "share": limit and rate / limit,
                "equal_tokens": equal,
            }


def _runs(generate: Callable[[Steps], None], count: int) -> list[Steps]:
    """Run once to warm up and to capture, then so many times."""
    runs = [Steps() for _ in range(count + 1)]
    for steps in runs:
        generate(steps)
    return runs[1:]


def _row(name: str, values: dict[str, Any]) -> tuple[str, ...]:
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
