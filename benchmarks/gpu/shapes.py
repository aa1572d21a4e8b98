"""The models of real size, one after the other, each as something that can be timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import models
from benchmarks.gpu.load import synchroniser, torch_on
from benchmarks.gpu.offline import Images, Prompts, Questions, Timed, loop, under_loadgen
from benchmarks.gpu.setting import Setting
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.roofline.work import (
    AnyWork,
    Circumstances,
    Decode,
    Diffusion,
    Encoder,
    Fixed,
)
from pytest_mlperf.rounds.work import find_work

PLAIN = "plain torch loop, inputs on the device"
STEPS = 20
"""Denoising steps of an image, each one call of the network for a batch of two: with guidance."""

WEIGHT_GIB = {"7B": 30.0, "13B": 60.0}
"""A GPU with less memory is not given this model: weights, caches and room for both."""


@dataclass(kw_only=True)
class Shape:
    """What is asked of one model.

    Attributes:
        name: For the table.
        way: How it was run.
        parameters: Of the module; of Llama by its dimensions.
        expected: As published; None: of no published model.
        batch: Samples together.
        unit: Word for what is counted.
        work: What a unit, or a sample, has to compute.
        seen: What was run.
        metric: Name in the metric table.
        run: Does it for so many seconds.
    """

    name: str
    way: str
    parameters: int
    expected: int | None
    batch: int
    unit: str
    work: AnyWork
    seen: Circumstances
    metric: str
    run: Callable[[float], Timed]


Maker = Callable[[Setting, contextlib.ExitStack], Iterator[Shape]]


def _engine(
    setting: Setting, engine: Engine, undo: contextlib.ExitStack, *, data: int, tokens: bool
) -> Callable[[float], Timed]:
    """Open an engine; return what runs it under LoadGen for about so many seconds."""
    undo.enter_context(engine)
    rates: list[float] = []

    def run(seconds: float) -> Timed:
        samples = max(data, round(rates[-1] * seconds / data) * data) if rates else data
        found = under_loadgen(engine, setting.path, data=data, samples=samples, tokens=tokens)
        rates.append(found.samples / (found.end_s - found.begin_s))
        return found

    return run


def llama(setting: Setting, undo: contextlib.ExitStack, size: str) -> Iterator[Shape]:
    from pytest_mlperf.adapters.engines.torch import TorchEngine

    small = setting.simulated
    if not small and (setting.memory_gib or 0) < WEIGHT_GIB[size]:
        raise MemoryError(f"{size} needs {WEIGHT_GIB[size]:g} GiB of GPU memory")
    own = "tiny" if small else size
    about = models.LLAMA[own]
    prompt, new, batch = (16, 8, 4) if small else (128, 128, 128)
    folder = models.write_llama(setting.path / f"llama-{own}", own)
    engine = TorchEngine(
        dataset=Prompts(samples=batch, tokens=prompt, vocabulary=about["vocab_size"]),
        model=str(folder),
        precision="fp32" if small else "bf16",
        device=setting.device,
        batch_size=batch,
        batching="static",
        max_new_tokens=new,
        ignore_eos=True,
        weights="dummy",
        threads=1 if small else None,
    )
    work = llama_work(about)
    yield Shape(
        name=f"Llama 2 {own}, {prompt} tokens in, {new} out",
        way="engine torch, static batches, LoadGen Offline",
        parameters=round(work.weights()) + _besides(about),
        expected=models.LLAMA_PARAMETERS.get(own),
        batch=batch,
        unit="token",
        work=work,
        seen=Circumstances(
            precision="fp32" if small else "bf16",
            kv=None if small else "bf16",
            batch=batch,
            input_tokens=prompt,
            output_tokens=new,
        ),
        metric="tokens_per_second",
        run=_engine(setting, engine, undo, data=batch, tokens=True),
    )


def llama_work(about: Mapping[str, int]) -> Decode:
    """Return what a Llama computes and reads."""
    return Decode(
        layers=about["num_hidden_layers"],
        width=about["hidden_size"],
        heads=about["num_attention_heads"],
        kv_heads=about["num_key_value_heads"],
        head_dim=about["hidden_size"] // about["num_attention_heads"],
        hidden=about["intermediate_size"],
        matrices=3,
        vocabulary=about["vocab_size"],
    )


def _besides(about: Mapping[str, int]) -> int:
    """Return the weights of a Llama that no product reads: input embedding and normalisations."""
    width, layers = about["hidden_size"], about["num_hidden_layers"]
    return about["vocab_size"] * width + (2 * layers + 1) * width


def resnet(setting: Setting, undo: contextlib.ExitStack) -> Iterator[Shape]:
    from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine

    torch, small = torch_on(setting.device), setting.simulated
    side, batch, precision = (64, 8, "fp32") if small else (224, 256, "bf16")
    with torch.device("meta"):
        counted = models.flop(lambda: models.resnet50()(torch.empty(1, 3, side, side)))
    known = find_work("resnet50")
    assert known is not None
    work = Fixed(sample_flop=counted) if small else known.work
    module = models.resnet50().to(setting.device, getattr(torch, _dtype(precision)))
    common: dict[str, Any] = {
        "name": f"ResNet-50 v1.5, {side} × {side}",
        "parameters": models.parameters(module),
        "expected": models.RESNET50_PARAMETERS,
        "batch": batch,
        "unit": "sample",
        "work": work,
        "seen": Circumstances(precision=precision),
        "metric": "throughput",
    }
    images = torch.randn(
        batch, 3, side, side, device=setting.device, dtype=getattr(torch, _dtype(precision))
    )
    wait = synchroniser(setting.device)
    call = torch.inference_mode()(lambda: module(images))
    yield Shape(**common, way=PLAIN, run=lambda s: loop(call, wait, batch, s))
    data = Images(samples=4 * batch, side=side)
    engine = TorchModuleEngine(
        dataset=data,
        model=None,
        precision=precision,
        factory="benchmarks.gpu.models:resnet50",
        device=setting.device,
        batch_size=batch,
        threads=1 if small else None,
    )
    run = _engine(setting, engine, undo, data=len(data), tokens=False)
    yield Shape(**common, way="engine torch-module, LoadGen Offline", run=run)


def bert(setting: Setting, undo: contextlib.ExitStack) -> Iterator[Shape]:
    from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine

    torch, small = torch_on(setting.device), setting.simulated
    own, tokens, batch, precision = ("tiny", 32, 8, "fp32") if small else ("large", 384, 64, "bf16")
    about = models.BERT[own]
    folder = models.write_bert(setting.path / f"bert-{own}", own)
    module = _bert_module(setting, folder, precision)
    ids = torch.randint(10, about["vocab_size"], (batch, tokens), device=setting.device)
    work = Encoder(
        layers=about["num_hidden_layers"],
        width=about["hidden_size"],
        outputs=2,
        least_tokens=float(tokens),
    )
    common: dict[str, Any] = {
        "name": f"BERT-{own}, {tokens} tokens",
        "parameters": models.parameters(module),
        "expected": None if small else models.BERT_LARGE_PARAMETERS,
        "batch": batch,
        "unit": "sample",
        "work": work,
        "seen": Circumstances(precision=precision, tokens=tokens),
        "metric": "throughput",
    }
    wait = synchroniser(setting.device)
    call = torch.inference_mode()(lambda: module(input_ids=ids))
    yield Shape(**common, way=PLAIN, run=lambda s: loop(call, wait, batch, s))
    data = Questions(samples=4 * batch, tokens=tokens, vocabulary=about["vocab_size"])
    engine = TorchModuleEngine(
        dataset=data,
        model=str(folder),
        precision=precision,
        factory="question-answering",
        device=setting.device,
        batch_size=batch,
        weights="dummy",
        threads=1 if small else None,
    )
    run = _engine(setting, engine, undo, data=len(data), tokens=False)
    yield Shape(**common, way="engine torch-module, LoadGen Offline", run=run)


def _bert_module(setting: Setting, folder: Path, precision: str) -> Any:
    import transformers

    torch, config = torch_on(setting.device), transformers.AutoConfig.from_pretrained(folder)
    with torch.device(setting.device):
        return transformers.AutoModelForQuestionAnswering.from_config(
            config, dtype=getattr(torch, _dtype(precision)), attn_implementation="sdpa"
        ).eval()


def sdxl(setting: Setting, undo: contextlib.ExitStack) -> Iterator[Shape]:
    import diffusers

    del undo
    torch, small = torch_on(setting.device), setting.simulated
    shapes = (models.TINY_UNET, models.TINY_VAE) if small else (models.SDXL_UNET, models.SDXL_VAE)
    precision, side = "fp32" if small else "bf16", int(shapes[0]["sample_size"])
    dtype = getattr(torch, _dtype(precision))
    call_flop, decoder_flop = models.sdxl_flop(*shapes)
    with torch.device(setting.device):
        unet = diffusers.UNet2DConditionModel(**shapes[0]).to(dtype).eval()
        vae = diffusers.AutoencoderKL(**shapes[1]).to(dtype).eval()
    where = {"device": setting.device, "dtype": dtype}
    inputs = models.unet_inputs(torch, 2, side, **where)
    latents = torch.randn(1, 4, side, side, **where)
    wait = synchroniser(setting.device)
    step = torch.inference_mode()(lambda: unet(**inputs).sample)
    decode = torch.inference_mode()(lambda: vae.decode(latents).sample)

    def image() -> None:
        for _ in range(STEPS):
            step()
        decode()

    common: dict[str, Any] = {
        "way": PLAIN,
        "unit": "sample",
        "seen": Circumstances(precision=precision),
        "metric": "throughput",
        "parameters": models.parameters(unet),
        "expected": None if small else models.SDXL_UNET_PARAMETERS,
    }
    pixels = f"{8 * side} × {8 * side}"
    yield Shape(
        **common,
        name=f"SDXL UNet, one call for {pixels}, a guided pair",
        batch=2,
        work=Fixed(sample_flop=call_flop),
        run=lambda s: loop(step, wait, 2, s),
    )
    yield Shape(
        **common,
        name=f"SDXL image of {pixels}: {STEPS} calls for a pair, VAE; no text encoders",
        batch=1,
        work=Diffusion(
            call_flop=call_flop, decoder_flop=decoder_flop, text_flop=0.0, steps=float(STEPS)
        ),
        run=lambda s: loop(image, wait, 1, s),
    )


def _dtype(precision: str) -> str:
    return {"fp32": "float32", "bf16": "bfloat16"}[precision]
