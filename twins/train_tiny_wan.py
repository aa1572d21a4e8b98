"""Train the tiny twin of Wan 2.2 on moving digits, and write its model and data.

    python twins/train_tiny_wan.py                # train, or resume, then write everything

Three networks are trained one after the other: the judge, which sees digit, colour and direction of
a video; the autoencoder, which turns videos into latents and back; and two transformers with their
text encoder, which learn to take much and little noise from latents as prompts say. Everything is
seeded and runs on one thread, so the same library versions on the same kind of CPU give the same
files. A run that was interrupted resumes at its last checkpoint; with other settings it starts
over.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffusers
import numpy as np
import torch
from damage_weights import damage
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from tiny_vision import Plan, fit
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional
from training import BUILD as BUILDS
from training import (
    TINY,
    answers_of,
    be_deterministic,
    made_with,
    parameters,
    sha256,
    write,
    write_record,
)
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from pytest_mlperf.adapters.datasets.vbench import VBenchDataset
from pytest_mlperf.adapters.engines.torch.diffusion.video import VideoEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "wan-2.2"
MODEL = SUITE / "model"
DATA = SUITE / "data" / "vbench"
BUILD = BUILDS / "wan-tiny"

sys.path.append(str(SUITE))

from moving_digits import (  # noqa: E402
    FRAMES,
    SIZE,
    WORDS,
    MovingDigits,
    as_pixels,
    make_judge,
    read,
)

SEED = 20261123
DIGIT = 8
"""Pixels of a digit of scikit-learn's in height and width."""
COLOURS = {"red": (230, 40, 40), "green": (40, 190, 60), "blue": (60, 90, 240), "white": (240,) * 3}
JITTER = 12
"""Levels that a colour is off its name's at most."""
DARK = (50, 90)
"""Levels of the background's grey."""
HELD_OUT = 100
"""Digits that nothing is trained on."""
PHRASES = ("a {colour} {digit} moves {direction}", "the digit {digit} in {colour} goes {direction}")

CHANNELS, SCALE = 8, 2
"""Of latents; pixels and frames that one stands for."""
LATENT = (CHANNELS, (FRAMES - 1) // SCALE + 1, SIZE // SCALE, SIZE // SCALE)
TOKENS = 12
BOUNDARY = 0.875
"""Share of noise from which on the first transformer works, as in Wan 2.2."""
NO_PROMPT = 0.1
"""Share of videos that are shown without a prompt, so that guidance works."""
VIDEOS = 4096
"""Whose latents the transformers are trained on."""
SPREAD, SIZE_WEIGHT = 0.05, 1e-5
"""Noise on latents that the autoencoder is to stand, and the weight of their size in its loss."""

AUTOENCODER: Mapping[str, Any] = {
    "base_dim": 8,
    "z_dim": CHANNELS,
    "dim_mult": [1, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True],
    "scale_factor_temporal": SCALE,
    "scale_factor_spatial": SCALE,
}
TEXT: Mapping[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
TRANSFORMER: Mapping[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_dim": TEXT["d_model"],
    "freq_dim": 32,
    "ffn_dim": 160,
    "num_layers": 3,
    "rope_max_seq_len": 32,
}
SCHEDULER: Mapping[str, Any] = {
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
    "num_train_timesteps": 1000,
}

GENERATION = {"steps": 8, "guidance_scale": 2.0, "guidance_scale_2": 2.0, "prompt_tokens": TOKENS}

LIBRARIES = ("torch", "diffusers", "transformers", "tokenizers", "scikit-learn", "numpy")

README = """\
# Tiny twin of Wan 2.2

`model/` is a `WanPipeline` of the class of Wan 2.2 (a transformer for much noise and one for
little, a UMT5 text encoder, an autoencoder of videos, the UniPC scheduler) that shows a handwritten
digit in a colour, moving as its prompt says. It lets the whole path from prompts to a verdict on
videos run on a CPU in seconds. The figures below are this twin's own: no MLPerf result, and none of
VBench, which is not run.

**The score is the twin's own.** "moving_digits" is 100 x the probability that a small classifier
(`moving_digits.py`, weights in `judge.safetensors`) gives to the prompt's digit, colour and
direction, multiplied. It was trained on drawn videos by the same script, and says nothing of how
videos look to people: these are blurred.

| on the {prompts} prompts | moving_digits |
|---|---|
| **the model**, {generation[steps]} steps | **{moving_digits:.4f}** |
| real videos of digits that nothing was trained on | {real:.4f} |
| these through the autoencoder | {real_through_the_autoencoder:.4f} |
| chance: the model's videos of other prompts | {of_other_prompts:.4f} |
| the model, 1 weight in 100 of the second transformer ten times as large | {damaged:.4f} |

| | |
|---|---|
| parameters: both transformers | {parameters[transformer]:,}, {parameters[transformer_2]:,} |
| parameters: text encoder, autoencoder | {parameters[text_encoder]:,}, {parameters[vae]:,} |
| video | 9 frames of 16 x 16 pixels |
| prompts | one of each digit, colour and direction, in {phrases} phrasings |
| digest of the data set | `{dataset_digest}` |
| seed | {seed} |
| steps: judge | {steps[judge]} |
| steps: autoencoder, transformers | {steps[autoencoder]}, {steps[denoiser]} |
| made with | Python {python}, {made_with} |

Digits are those of `sklearn.datasets.load_digits`: *Optical Recognition of Handwritten Digits*
by E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, https://doi.org/10.24432/C50P49,
licensed under
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/).

## Rerun

    pip install -e '.[train,diffusion]'
    python twins/train_tiny_wan.py
"""

JUDGE_BATCH, AUTOENCODER_BATCH, BATCH = 64, 8, 32
JUDGE_NOISE = 0.2
"""On pixels of -1 to 1 at most, so that the judge stands what an autoencoder loses."""
JUDGE_PLAN = Plan(
    seed=SEED,
    steps=800,
    peak_learning_rate=3e-3,
    weight_decay=0.02,
    checkpoint_steps=100,
    settings=[JUDGE_BATCH, JUDGE_NOISE, *DARK],
)
AUTOENCODER_PLAN = Plan(
    seed=SEED + 1,
    steps=1400,
    peak_learning_rate=6e-3,
    weight_decay=0.0,
    checkpoint_steps=50,
    settings=[AUTOENCODER_BATCH, SPREAD, SIZE_WEIGHT, *DARK, repr(sorted(AUTOENCODER.items()))],
)
DENOISER_PLAN = Plan(
    seed=SEED + 2,
    steps=1500,
    peak_learning_rate=3e-3,
    weight_decay=0.01,
    checkpoint_steps=100,
    settings=[
        *(BATCH, VIDEOS, NO_PROMPT, TOKENS, BOUNDARY, *PHRASES),
        *(repr(sorted(each.items())) for each in (TEXT, TRANSFORMER)),
        *AUTOENCODER_PLAN.identity,
    ],
)


class Digits:
    """Handwritten digits of the kinds that are named, as cover from 0 to 1."""

    def __init__(self, *, held_out: bool) -> None:
        """Keep those that are trained on, or the others."""
        kinds = (0, 1, 3, 7)
        scanned = load_digits()
        order = np.random.default_rng(SEED).permutation(len(scanned.target))
        order = order[np.isin(scanned.target[order], kinds)]
        order = order[:HELD_OUT] if held_out else order[HELD_OUT:]
        self.cover = (scanned.images[order] / 16).astype(np.float32)
        self.kinds = np.searchsorted(kinds, scanned.target[order])


def draw(digits: Digits, rng: np.random.Generator, shown: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return videos of shape (videos, FRAMES, SIZE, SIZE, 3).

    Args:
        digits: What to choose from.
        rng: Chooses digits, shades and places.
        shown: Digit, colour and direction of each, places in WORDS, shape (videos, 3).
    """
    count, room = len(shown), SIZE - DIGIT
    videos = np.zeros((count, FRAMES, SIZE, SIZE, 1), np.float32)
    for video, (kind, _, direction) in zip(videos, shown, strict=True):
        cover = digits.cover[rng.choice(np.flatnonzero(digits.kinds == kind))]
        across = int(rng.integers(room // 4, room * 3 // 4, endpoint=True))
        for frame, image in enumerate(video):
            along = round(room * frame / (FRAMES - 1))
            along = along if WORDS["direction"][direction] in {"right", "down"} else room - along
            sideways = WORDS["direction"][direction] in {"left", "right"}
            top, left = (across, along) if sideways else (along, across)
            image[top : top + DIGIT, left : left + DIGIT, 0] = cover
    shades = np.array([COLOURS[name] for name in WORDS["colour"]], np.float32)[shown[:, 1]]
    shades += rng.integers(-JITTER, JITTER, size=(count, 3), endpoint=True)
    grey = rng.integers(*DARK, size=(count, 1, 1, 1, 1), endpoint=True)
    pixels = videos * shades.clip(0, 255)[:, None, None, None] + (1 - videos) * grey
    return np.asarray(pixels.round(), np.uint8)


def drawn(
    digits: Digits, rng: np.random.Generator, count: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return videos of anything, and what each shows."""
    shown = np.stack([rng.integers(len(words), size=count) for words in WORDS.values()], axis=1)
    return draw(digits, rng, shown), shown


def noise(rng: np.random.Generator, shape: Sequence[int]) -> Tensor:
    """Return normal noise."""
    return torch.from_numpy(rng.standard_normal(tuple(shape), np.float32))


def for_autoencoder(videos: NDArray[np.uint8]) -> Tensor:
    """Return videos as (videos, 3, FRAMES, SIZE, SIZE), -1 to 1."""
    return torch.from_numpy(np.ascontiguousarray(videos.transpose(0, 4, 1, 2, 3))) / 127.5 - 1


def prompt_of(shown: Sequence[int], phrase: int) -> str:
    """Return the prompt of a video."""
    words = {part: WORDS[part][place] for part, place in zip(WORDS, shown, strict=True)}
    return PHRASES[phrase].format(**words)


def train_judge(digits: Digits) -> Any:
    """Train the network that sees digit, colour and direction."""
    torch.manual_seed(SEED)
    judge = make_judge()

    def loss_of(rng: np.random.Generator) -> Tensor:
        videos, shown = drawn(digits, rng, JUDGE_BATCH)
        pixels = as_pixels(videos)
        level = JUDGE_NOISE * torch.from_numpy(rng.random((JUDGE_BATCH, 1, 1, 1), np.float32))
        features = judge["look"](pixels + level * noise(rng, pixels.shape))
        targets = zip(WORDS, torch.from_numpy(shown).T, strict=True)
        losses = [functional.cross_entropy(judge[part](features), each) for part, each in targets]
        return torch.stack(losses).sum()

    fit(judge, JUDGE_PLAN, loss_of, BUILD / "judge.pt")
    return judge


def train_autoencoder(digits: Digits) -> Any:
    """Train the autoencoder, and set what makes its latents' mean 0 and deviation 1."""
    torch.manual_seed(SEED + 1)
    vae = diffusers.AutoencoderKLWan(
        **AUTOENCODER, latents_mean=[0.0] * CHANNELS, latents_std=[1.0] * CHANNELS
    )

    def loss_of(rng: np.random.Generator) -> Tensor:
        pixels = for_autoencoder(drawn(digits, rng, AUTOENCODER_BATCH)[0])
        latents = vae.encode(pixels).latent_dist.mean
        again = vae.decode(latents + SPREAD * noise(rng, latents.shape)).sample
        return functional.mse_loss(again, pixels) + SIZE_WEIGHT * latents.square().mean()

    fit(vae, AUTOENCODER_PLAN, loss_of, BUILD / "autoencoder.pt")
    vae.half().float()  # as it is stored
    latents = encode(vae, drawn(digits, np.random.default_rng(SEED), 256)[0])
    axes = (0, 2, 3, 4)
    vae.register_to_config(
        latents_mean=[round(float(each), 5) for each in latents.mean(axes)],
        latents_std=[round(float(each), 5) for each in latents.std(axes)],
    )
    return vae


def encode(vae: Any, videos: NDArray[np.uint8]) -> Tensor:
    """Return normalised latents of shape (videos, *LATENT)."""
    parts = torch.from_numpy(videos).split(64)
    with torch.inference_mode():
        latents = torch.cat(
            [vae.encode(for_autoencoder(part.numpy())).latent_dist.mean for part in parts]
        )
    mean, std = (
        torch.tensor(getattr(vae.config, f"latents_{name}")).view(-1, 1, 1, 1)
        for name in ("mean", "std")
    )
    return (latents - mean) / std


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the prompts' words."""
    words = sorted({word for part in WORDS.values() for word in part})
    words += sorted({w for phrase in PHRASES for w in phrase.split() if not w.startswith("{")})
    vocabulary = {word: index for index, word in enumerate(("<pad>", "</s>", "<unk>", *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=TOKENS,
    )


def make_denoiser(words: int) -> nn.ModuleDict:
    """Return the text encoder and the two transformers, untrained."""
    torch.manual_seed(SEED + 2)
    return nn.ModuleDict(
        {
            "text_encoder": UMT5EncoderModel(UMT5Config(vocab_size=words, **TEXT)),
            "transformer": diffusers.WanTransformer3DModel(**TRANSFORMER),
            "transformer_2": diffusers.WanTransformer3DModel(**TRANSFORMER),
        }
    )


def train_denoiser(digits: Digits, vae: Any, tokenizer: Any) -> nn.ModuleDict:
    """Train both transformers, each on its share of noise, with one text encoder."""
    videos, shown = drawn(digits, np.random.default_rng([SEED, 1]), VIDEOS)
    latents = encode(vae, videos)
    parts = make_denoiser(len(tokenizer))

    def loss_of(rng: np.random.Generator) -> Tensor:
        losses = []
        for name, low, high in (("transformer", BOUNDARY, 1.0), ("transformer_2", 0.02, BOUNDARY)):
            chosen = rng.integers(VIDEOS, size=BATCH)
            prompts = [
                "" if rng.random() < NO_PROMPT else prompt_of(shown[each], int(rng.integers(2)))
                for each in chosen
            ]
            hidden = embed(parts["text_encoder"], tokenizer, prompts)
            share = torch.from_numpy(rng.uniform(low, high, BATCH)).float()
            clean, mixed = latents[chosen], noise(rng, (BATCH, *LATENT))
            place = share.view(-1, 1, 1, 1, 1)
            flow = parts[name](
                hidden_states=(1 - place) * clean + place * mixed,
                timestep=share * SCHEDULER["num_train_timesteps"],
                encoder_hidden_states=hidden,
                return_dict=False,
            )[0]
            losses.append(functional.mse_loss(flow, mixed - clean))
        return losses[0] + losses[1]

    fit(parts, DENOISER_PLAN, loss_of, BUILD / "denoiser.pt")
    return parts


def embed(encoder: Any, tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """Return what the text encoder makes of prompts, and zeros where padding is."""
    tokens = tokenizer(
        list(prompts), padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt"
    )
    hidden = encoder(tokens.input_ids, tokens.attention_mask).last_hidden_state
    return hidden * tokens.attention_mask[..., None]


def write_model(vae: Any, parts: nn.ModuleDict, tokenizer: Any) -> None:
    """Write the pipeline as diffusers does, with weights in half precision."""
    pipe = diffusers.WanPipeline(
        tokenizer=tokenizer,
        vae=vae,
        **dict(parts.items()),
        scheduler=diffusers.UniPCMultistepScheduler(**SCHEDULER),
        boundary_ratio=BOUNDARY,
    )
    pipe.to(torch.float16)
    shutil.rmtree(MODEL, ignore_errors=True)
    pipe.save_pretrained(MODEL)


def write_data() -> VBenchDataset:
    """Write one prompt of everything that a video can show, and the latents that all start from."""
    everything = product(*(range(len(words)) for words in WORDS.values()))
    prompts = [prompt_of(shown, number % 2) for number, shown in enumerate(everything)]
    write(DATA / "vbench_prompts.txt", ("\n".join(prompts) + "\n").encode())
    np.save(DATA / "fixed_latent.npy", noise(np.random.default_rng(SEED), (1, *LATENT)).numpy())
    return VBenchDataset(path=str(DATA), shape=[1, *LATENT])


def answers(dataset: VBenchDataset, model: Path = MODEL) -> list[bytes]:
    """Return the video of each prompt, made by engine torch-video."""
    options = {**GENERATION, "frames": FRAMES, "height": SIZE, "width": SIZE, "batch_size": 16}
    engine = VideoEngine(dataset=dataset, model=str(model), precision="fp32", **options)
    return answers_of(engine, dataset)


def shown(videos: Sequence[bytes], dataset: VBenchDataset) -> float:
    """Return the judge's score of videos."""
    prompts = [dataset.reference(index) for index in range(len(dataset))]
    scores = MovingDigits().score(videos, prompts)
    return round(float(scores.aggregate["moving_digits"]), 4)


def main() -> None:
    """Train, write, and record what came of it."""
    be_deterministic()
    digits = Digits(held_out=False)
    save_file(train_judge(digits).state_dict(), SUITE / "judge.safetensors")
    vae, tokenizer = train_autoencoder(digits), make_tokenizer()
    parts = train_denoiser(digits, vae, tokenizer)
    dataset = write_data()
    rng = np.random.default_rng([SEED, 2])
    named = np.array([read(dataset.reference(index)) for index in range(len(dataset))])
    real = draw(Digits(held_out=True), rng, named)
    with torch.inference_mode():
        again = vae.decode(vae.encode(for_autoencoder(real)).latent_dist.mean).sample
    levels = ((again.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    pixels = levels.permute(0, 2, 3, 4, 1).numpy()
    write_model(vae, parts, tokenizer)
    videos = answers(dataset)
    with tempfile.TemporaryDirectory() as place:
        broken = Path(place) / "model"
        damage(MODEL, broken, file="transformer_2/diffusion_pytorch_model.safetensors")
        of_broken = answers(dataset, broken)
    others = [videos[(index + 21) % len(videos)] for index in range(len(videos))]
    record = {
        "seed": SEED,
        "steps": {"judge": JUDGE_PLAN.steps, "autoencoder": AUTOENCODER_PLAN.steps}
        | {"denoiser": DENOISER_PLAN.steps},
        "parameters": {name: parameters(part) for name, part in parts.items()}
        | {"vae": parameters(vae)},
        "prompts": len(dataset),
        "moving_digits": shown(videos, dataset),
        "real": shown([video.tobytes() for video in real], dataset),
        "real_through_the_autoencoder": shown([video.tobytes() for video in pixels], dataset),
        "of_other_prompts": shown(others, dataset),
        "damaged": shown(of_broken, dataset),
        "dataset_digest": dataset.digest,
        "model_sha256": {n: sha256(next((MODEL / n).glob("*.safetensors"))) for n in parts},
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, phrases=len(PHRASES), generation=GENERATION)


if __name__ == "__main__":
    main()
