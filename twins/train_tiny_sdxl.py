"""Train the tiny twin of Stable Diffusion XL on painted digits, and write its model and data.

    python twins/train_tiny_sdxl.py                # train, or resume, then write everything

Three networks are trained one after the other: the judge, which sees digit and colour of an image;
the autoencoder, which turns images into latents and back; and the UNet with its text encoders,
which learn to take noise from latents as captions say. Everything is seeded and runs on one thread,
so the same library versions on the same kind of CPU give the same files. Checkpoints are written
every hundred steps; a run that was interrupted resumes there and ends in the same models. With
other settings it starts over.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffusers
import numpy as np
import torch
from safetensors.torch import save_file
from tiny_paintings import (
    COLOURS,
    DIGITS,
    HELD_OUT,
    PHRASES,
    SIZE,
    Paintings,
    Strokes,
    load_strokes,
    paint,
)
from tiny_paintings import caption as caption_of
from tiny_vision import Plan, fit
from torch import Tensor, nn
from torch.nn import functional
from training import BUILD as BUILDS
from training import TINY, Answers, made_with, parameters, sha256, write_record
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from pytest_mlperf.adapters.datasets.coco_captions import CocoCaptionsDataset
from pytest_mlperf.adapters.engines.torch.diffusion import DiffusionEngine
from pytest_mlperf.adapters.scorers.images import ClipFidScorer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "stable-diffusion-xl"
MODEL = SUITE / "model"
DATA = SUITE / "data" / "coco2014"
STATISTICS = SUITE / "real.npz"
BUILD = BUILDS / "stable-diffusion-xl-tiny"

sys.path.append(str(SUITE))

SEED = 20261121
LATENT = SIZE // 8
"""Height and width of latents."""
CHANNELS = 4
TOKENS = 16
"""Of a prompt; Stable Diffusion XL's text encoders take 77."""
TRAINING_STEPS = 1000
"""Of noise, as in Stable Diffusion XL."""
TRAINING_IMAGES = 6144
"""Whose latents the UNet is trained on."""
MINUTES = 12
"""That it took."""
REAL_IMAGES = 4000
"""Of held-out digits, for the statistics that images are compared with."""
NO_CAPTION = 0.1
"""Share of images that are shown without a caption, so that guidance works."""
DIVERGENCE_WEIGHT = 3e-4
"""Of the autoencoder's latents from a normal distribution, per number, in its loss."""

PARTS = ("text_encoder", "text_encoder_2", "unet", "vae")
SPECIAL = ("<|startoftext|>", "<|endoftext|>")

GENERATION = {"steps": 8, "guidance_scale": 2.0, "negative_prompt": "", "threads": 1}
BATCH_SIZE = 16

AUTOENCODER: Mapping[str, Any] = {
    "block_out_channels": (8, 16, 32, 32),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 1,
    "norm_num_groups": 2,
    "latent_channels": CHANNELS,
    "sample_size": SIZE,
}
FIRST_TEXT, SECOND_TEXT = 32, 64
"""Width of the two text encoders; Stable Diffusion XL's are 768 and 1280 wide."""
SECOND_POOLED = 64
TIME_EMBEDDING = 8
UNET: Mapping[str, Any] = {
    "sample_size": LATENT,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "block_out_channels": (48, 80),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (3, 5),
    "transformer_layers_per_block": 1,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": TIME_EMBEDDING,
    "projection_class_embeddings_input_dim": 6 * TIME_EMBEDDING + SECOND_POOLED,
    "cross_attention_dim": FIRST_TEXT + SECOND_TEXT,
    "norm_num_groups": 16,
}
NOISE: Mapping[str, Any] = {
    "num_train_timesteps": TRAINING_STEPS,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
}

JUDGE_BATCH, AUTOENCODER_BATCH, UNET_BATCH = 64, 16, 64
PAINTER = hashlib.sha256(Path(__file__).with_name("tiny_paintings.py").read_bytes()).hexdigest()
JUDGE_PLAN = Plan(
    seed=SEED,
    steps=1200,
    peak_learning_rate=3e-3,
    weight_decay=0.02,
    checkpoint_steps=100,
    settings=[JUDGE_BATCH, PAINTER],
)
AUTOENCODER_PLAN = Plan(
    seed=SEED + 1,
    steps=1000,
    peak_learning_rate=4e-3,
    weight_decay=0.0,
    checkpoint_steps=100,
    settings=[AUTOENCODER_BATCH, DIVERGENCE_WEIGHT, PAINTER, repr(sorted(AUTOENCODER.items()))],
)
UNET_PLAN = Plan(
    seed=SEED + 2,
    steps=2400,
    peak_learning_rate=2e-3,
    weight_decay=0.01,
    checkpoint_steps=100,
    settings=[
        *(UNET_BATCH, TRAINING_IMAGES, NO_CAPTION, TOKENS, FIRST_TEXT, SECOND_TEXT),
        *(repr(sorted(UNET.items())), repr(sorted(NOISE.items())), *PHRASES),
        *AUTOENCODER_PLAN.identity,
    ],
)
LIBRARIES = (
    *("torch", "diffusers", "transformers", "tokenizers", "safetensors", "scikit-learn"),
    *("pillow", "numpy"),
)


TOLD: Mapping[str, Any] = {
    "features": 32,
    "real_images": REAL_IMAGES,
    "size": SIZE,
    "channels": CHANNELS,
    "latent": LATENT,
    "tokens": TOKENS,
    "no_caption_percent": 100 * NO_CAPTION,
    "colours": len(COLOURS),
    "digits": len(DIGITS),
    "phrases": len(PHRASES),
    "held_out": HELD_OUT,
    "minutes": MINUTES,
}
"""What only the README tells."""

README = """\
# Tiny twin of Stable Diffusion XL

`model/` is a pipeline of the class of Stable Diffusion XL (`StableDiffusionXLPipeline`: two text
encoders, a UNet that they and the image's size steer, an autoencoder of 8 pixels per latent, the
Euler scheduler) that paints a handwritten digit in a colour, as its caption says. It lets the whole
path from captions to a verdict on images run on a CPU in seconds. It is not MLPerf's model, and its
data are not COCO: the figures below are this twin's own, they are no MLPerf result and say nothing
about Stable Diffusion XL.

**"clip" and "fid" are not CLIP's and not Inception's here.** A tiny classifier stands in for both
(`coloured_digits.py`, weights in `judge.safetensors`), which was trained on real paintings by the
same script. "clip" is 100 x the probability it gives to the caption's digit and colour; "fid" is
the Fréchet distance of its {features} features from those of {real_images:,} real paintings of
digits that nothing was trained on (`real.npz`).

| on the {captions} captions | clip (higher is better) | fid (lower is better) |
|---|---|---|
| **the model**, {generation[steps]} steps, guidance {generation[guidance_scale]} | \
**{clip:.4f}** | **{fid:.4f}** |
| the model without guidance | {without_guidance[clip]:.4f} | {without_guidance[fid]:.4f} |
| real paintings | {real[clip]:.4f} | {real[fid]:.4f} |
| real paintings through the autoencoder | {real_through_the_autoencoder[clip]:.4f} | \
{real_through_the_autoencoder[fid]:.4f} |
| chance: the model's images of other captions | {of_other_captions[clip]:.4f} | \
{of_other_captions[fid]:.4f} |
| chance: noise instead of latents | {of_noise[clip]:.4f} | {of_noise[fid]:.4f} |

The distance of {captions} images from many is never 0: {captions} real ones show how far it goes
down. All captions start from the same latents, so each has one image, and the images are less
varied than real ones.

| | |
|---|---|
| images whose digit, colour, both the classifier names as the caption | {named[digit_percent]} %, \
{named[colour_percent]} %, {named[both_percent]} % |
| the same of real paintings of held-out digits | {judge[digit_percent]} %, \
{judge[colour_percent]} %, {judge[both_percent]} % |
| signal to noise of the autoencoder (PSNR) | {autoencoder_psnr_db} dB |
| parameters: UNet, autoencoder | {parameters[unet]:,}, {parameters[vae]:,} |
| parameters: text encoders, classifier | {parameters[text_encoder]:,} and \
{parameters[text_encoder_2]:,}, {parameters[judge]:,} |
| image, latents | {size} x {size} pixels, (1, {channels}, {latent}, {latent}) |
| weights | stored in half precision, as MLPerf's; run in float32 |
| SHA-256 of the UNet | `{model_sha256[unet]}` |
| SHA-256 of the autoencoder | `{model_sha256[vae]}` |
| SHA-256 of the text encoders | `{model_sha256[text_encoder]}`, `{model_sha256[text_encoder_2]}` |
| SHA-256 of the classifier | `{judge_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed | {seed} |
| steps x images: UNet, autoencoder, classifier | {steps[denoiser]} x {batch[denoiser]}, \
{steps[autoencoder]} x {batch[autoencoder]}, {steps[judge]} x {batch[judge]} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

The folder is what diffusers writes and reads. Its noise schedule is that of Stable Diffusion XL;
its scheduler spaces steps so that the first is the noisiest ("trailing"), which suits so few. Text
encoders take {tokens} tokens and give their last hidden state but one; the second gives the pooled
text, too. {no_caption_percent:.0f} % of the training images had no caption, so that guidance has \
something to
lead away from: the suite's negative prompt is empty.

## Data

`data/coco2014/` has MLPerf's layout: `captions/captions_source.tsv` with the columns of the
official file, and `latents/latents.npy`, the noise that all images start from. There is one caption
for each of {colours} colours and {digits} digits, in one of {phrases} phrasings.

Paintings are the 8 x 8 digits of `sklearn.datasets.load_digits`, enlarged to 52 x 52 pixels, in a
shade of the colour, somewhat off the centre of a dark background. {held_out} of the 1,797 digits
are held out; the rest were trained on.

Source: *Optical Recognition of Handwritten Digits* by E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed under
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/).

## Code of the suite

The suite names its scorer's networks as `coloured_digits:CaptionScores` and
`coloured_digits:ImageFeatures`. `suites/conftest.py`, which pytest reads before a suite of
that folder, adds this folder to where Python looks; take it along with a copy of the suite, or set
`PYTHONPATH`.

## Rerun

    pip install -e '.[train,diffusion]'
    python twins/train_tiny_sdxl.py

This takes about {minutes} minutes on one core, resumes after an interruption, and writes every file
of this folder but `coloured_digits.py`. The same library versions on the same kind of CPU give the
same bytes.
"""


def as_pixels(images: NDArray[np.uint8]) -> Tensor:
    """Return images of shape (images, height, width, 3) as (images, 3, height, width), -1 to 1."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def noise(rng: np.random.Generator, shape: Sequence[int]) -> Tensor:
    """Return normal noise."""
    return torch.from_numpy(rng.standard_normal(tuple(shape), np.float32))


def train_judge(strokes: Strokes) -> Any:
    """Train the network that sees digit and colour."""
    from coloured_digits import make_judge

    torch.manual_seed(SEED)
    judge = make_judge()

    def loss_of(rng: np.random.Generator) -> Tensor:
        seen = paint(strokes, JUDGE_BATCH, rng)
        features = judge["look"](as_pixels(seen.images))
        targets = {"digit": seen.digits, "colour": seen.colours}
        losses = [
            functional.cross_entropy(judge[part](features), torch.from_numpy(each))
            for part, each in targets.items()
        ]
        return losses[0] + losses[1]

    fit(judge, JUDGE_PLAN, loss_of, BUILD / "judge.pt")
    return judge


def train_autoencoder(strokes: Strokes) -> Any:
    """Train the autoencoder, and set the factor that makes its latents' deviation 1."""
    torch.manual_seed(SEED + 1)
    vae = diffusers.AutoencoderKL(**AUTOENCODER)

    def loss_of(rng: np.random.Generator) -> Tensor:
        pixels = as_pixels(paint(strokes, AUTOENCODER_BATCH, rng).images)
        posterior = vae.encode(pixels).latent_dist
        latents = posterior.mean + posterior.std * noise(rng, posterior.mean.shape)
        again = vae.decode(latents).sample
        divergence = (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean() / 2
        return functional.mse_loss(again, pixels) + DIVERGENCE_WEIGHT * divergence

    fit(vae, AUTOENCODER_PLAN, loss_of, BUILD / "autoencoder.pt")
    vae.half().float()  # as it is stored
    latents = encode(vae, paint(strokes, 512, np.random.default_rng(SEED)).images)
    vae.register_to_config(scaling_factor=round(1 / float(latents.std()), 5), force_upcast=False)
    return vae


def encode(vae: Any, images: NDArray[np.uint8]) -> Tensor:
    """Return the latents of images as the encoder gives them, not scaled."""
    with torch.inference_mode():
        parts = [vae.encode(as_pixels(part)).latent_dist.mean for part in np.split(images, 16)]
    return torch.cat(parts).clone()


def all_captions() -> list[str]:
    """Return every caption.

    That of phrase p, colour c and digit d is at (p x colours + c) x digits + d.
    """
    return [
        caption_of(phrase, colour, digit)
        for phrase in range(len(PHRASES))
        for colour in range(len(COLOURS))
        for digit in range(len(DIGITS))
    ]


def learn_merges(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Learn byte-pair encoding in which every word of the texts is one token in the end.

    The library tokenizers numbers tokens otherwise each time, so it cannot be used here.
    """
    counts = Counter(word for text in texts for word in re.findall(r"[a-z]+|[^a-z\s]", text))
    words = {(*word[:-1], f"{word[-1]}</w>"): count for word, count in counts.items()}
    merges: list[tuple[str, str]] = []
    while any(len(word) > 1 for word in words):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        # Of pairs as frequent the last in the alphabet, so that there is one answer.
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = {merged(word, best): count for word, count in words.items()}
    return merges


def merged(word: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    """Return a word's tokens with each occurrence of a pair as one token."""
    joined: list[str] = []
    for token in word:
        if joined and (joined[-1], token) == pair:
            joined[-1] += token
        else:
            joined.append(token)
    return tuple(joined)


def make_tokenizers(folder: Path) -> tuple[Any, Any]:
    """Return a tokenizer for each text encoder; as in Stable Diffusion XL their padding differs.

    Args:
        folder: Where vocab.json and merges.txt are written.
    """
    merges = learn_merges(all_captions())
    letters = [chr(code) for code in range(33, 127)]
    # As in CLIP: letters alone and at the end of a word, what is merged, the special tokens.
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary += [*("".join(pair) for pair in merges), *SPECIAL]
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {token: number for number, token in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(numbers), "utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    first, second = (
        CLIPTokenizer.from_pretrained(folder, model_max_length=TOKENS, pad_token=pad)
        for pad in (SPECIAL[1], "!")
    )
    return first, second


def make_pipeline(vae: Any) -> Any:
    """Return the pipeline with all but the autoencoder untrained."""
    torch.manual_seed(SEED + 2)
    first, second = make_tokenizers(BUILD / "tokenizer")
    return diffusers.StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text_config(first, width=FIRST_TEXT, layers=2)),
        text_encoder_2=CLIPTextModelWithProjection(
            text_config(second, width=SECOND_TEXT, layers=3)
        ),
        tokenizer=first,
        tokenizer_2=second,
        unet=diffusers.UNet2DConditionModel(**UNET),
        scheduler=diffusers.EulerDiscreteScheduler(**NOISE, timestep_spacing="trailing"),
        add_watermarker=False,
    )


def text_config(tokenizer: Any, *, width: int, layers: int) -> Any:
    """Return the configuration of a text encoder."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=TOKENS,
        projection_dim=SECOND_POOLED,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def predict(
    parts: Mapping[str, Any], noisy: Tensor, steps: Tensor, tokens: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the noise that is seen in latents.

    Args:
        parts: "unet", and the text encoders "first" and "second".
        noisy: Shape (images, CHANNELS, LATENT, LATENT).
        steps: Shape (images,): which of the TRAINING_STEPS each is at.
        tokens: For each text encoder, shape (images, TOKENS).
    """
    first = parts["first"](tokens[0], output_hidden_states=True)
    second = parts["second"](tokens[1], output_hidden_states=True)
    sizes = torch.tensor([[SIZE, SIZE, 0, 0, SIZE, SIZE]]).expand(len(noisy), -1)
    noise: Tensor = parts["unet"](
        noisy,
        steps,
        torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1),
        added_cond_kwargs={"text_embeds": second[0], "time_ids": sizes},
    ).sample
    return noise


def all_tokens(pipe: Any) -> tuple[Tensor, Tensor]:
    """Return the tokens of `all_captions` for each text encoder, and of no caption at the end."""
    first, second = (
        tokenizer(
            [*all_captions(), ""],
            padding="max_length",
            max_length=TOKENS,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        for tokenizer in (pipe.tokenizer, pipe.tokenizer_2)
    )
    return first, second


def train_denoiser(pipe: Any, paintings: Paintings) -> None:
    """Train UNet and text encoders in place to tell the noise in latents."""
    latents = encode(pipe.vae, paintings.images) * pipe.vae.config.scaling_factor
    first, second = all_tokens(pipe)
    parts = {"unet": pipe.unet, "first": pipe.text_encoder, "second": pipe.text_encoder_2}
    noiser = diffusers.DDPMScheduler(**NOISE)

    def loss_of(rng: np.random.Generator) -> Tensor:
        chosen = rng.integers(len(latents), size=UNET_BATCH)
        phrases = rng.integers(len(PHRASES), size=UNET_BATCH)
        rows = (phrases * len(COLOURS) + paintings.colours[chosen]) * len(DIGITS)
        rows = rows + paintings.digits[chosen]
        rows[rng.random(UNET_BATCH) < NO_CAPTION] = len(first) - 1
        steps = torch.from_numpy(rng.integers(TRAINING_STEPS, size=UNET_BATCH))
        clean = latents[chosen]
        added = noise(rng, clean.shape)
        noisy = noiser.add_noise(clean, added, steps)
        return functional.mse_loss(predict(parts, noisy, steps, (first[rows], second[rows])), added)

    fit(nn.ModuleDict(parts), UNET_PLAN, loss_of, BUILD / "denoiser.pt")


class Images(Answers):
    """A sink that waits for all images."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self._expected = expected
        self._error: BaseException | None = None
        self._finished = threading.Event()

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Keep images."""
        super().done(ids, outputs, n_tokens)
        if len(self.outputs) == self._expected:
            self._finished.set()

    def failed(self, error: BaseException) -> None:
        """Keep the engine's error, which it reports from its thread."""
        self._error = error
        self._finished.set()

    def wait(self) -> list[bytes]:
        """Return the images in the order of samples."""
        self._finished.wait()
        if self._error is not None:
            raise self._error
        return [self.outputs[index] for index in sorted(self.outputs)]


def generate(dataset: CocoCaptionsDataset, **options: Any) -> list[bytes]:
    """Return the image of each caption as engine torch-diffusion makes it."""
    settings = {"precision": "fp32", "batch_size": BATCH_SIZE, **GENERATION, **options}
    sink, indices = Images(len(dataset)), range(len(dataset))
    with DiffusionEngine(dataset=dataset, model=str(MODEL), **settings) as engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)
        return sink.wait()


def write_model(pipe: Any) -> None:
    """Write the pipeline in half precision, the tokenizers in the files of Stable Diffusion XL."""
    shutil.rmtree(MODEL, ignore_errors=True)
    pipe.to(dtype=torch.float16)
    pipe.save_pretrained(MODEL, safe_serialization=True)


def write_data() -> None:
    """Write one caption for each colour and digit, and the latents that all images start from."""
    rng = np.random.default_rng([SEED, 3])
    pairs = [(colour, digit) for colour in range(len(COLOURS)) for digit in range(len(DIGITS))]
    (DATA / "captions").mkdir(parents=True, exist_ok=True)
    (DATA / "latents").mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n")
    table.writerow(["id", "image_id", "caption", "height", "width", "file_name", "coco_url"])
    for number, pair in enumerate(rng.permutation(pairs), start=1):
        colour, digit = map(int, pair)
        caption = caption_of(int(rng.integers(len(PHRASES))), colour, digit)
        table.writerow([number, number, caption, SIZE, SIZE, f"painted_{number:03}.png", ""])
    (DATA / "captions" / "captions_source.tsv").write_text(text.getvalue(), "utf-8")
    np.save(DATA / "latents" / "latents.npy", noise(rng, (1, CHANNELS, LATENT, LATENT)).numpy())


def write_statistics(held_out: Strokes) -> None:
    """Write mean and covariance of the judge's features of real images, as MLPerf's file has."""
    from coloured_digits import ImageFeatures

    real = paint(held_out, REAL_IMAGES, np.random.default_rng([SEED, 5]))
    features = ImageFeatures(model=None, device="cpu")(real.images)
    np.savez(STATISTICS, mu=features.mean(axis=0), sigma=np.cov(features, rowvar=False))


def score(images: Sequence[bytes], references: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the scores of images by the suite's scorer."""
    scorer = ClipFidScorer(
        clip="coloured_digits:CaptionScores",
        inception="coloured_digits:ImageFeatures",
        statistics=str(STATISTICS),
        size=SIZE,
        batch_size=64,
    )
    aggregate = scorer.score(images, references).aggregate
    return {name: round(float(value), 4) for name, value in aggregate.items()}


def seen(images: NDArray[np.uint8], digits: Any, colours: Any) -> dict[str, float]:
    """Return which share of images the judge names rightly, in percent."""
    from coloured_digits import load_judge

    with torch.inference_mode():
        judge = load_judge("cpu")
        features = judge["look"](as_pixels(images))
        right = [
            judge[part](features).argmax(1).numpy() == named
            for part, named in (("digit", digits), ("colour", colours))
        ]
    return {
        "digit_percent": round(100 * float(right[0].mean()), 3),
        "colour_percent": round(100 * float(right[1].mean()), 3),
        "both_percent": round(100 * float((right[0] & right[1]).mean()), 3),
    }


def like(captions: Sequence[tuple[int, int]], strokes: Strokes, seed: int) -> NDArray[np.uint8]:
    """Return a real image for each digit and colour."""
    rng = np.random.default_rng([SEED, seed])
    pool = paint(strokes, 64 * len(captions), rng)
    places = [
        int(np.flatnonzero((pool.digits == digit) & (pool.colours == colour))[0])
        for digit, colour in captions
    ]
    return pool.images[places]


def measure(held_out: Strokes) -> dict[str, Any]:
    """Return what the model, real images and chance score, and how good judge and latents are."""
    from coloured_digits import read

    dataset = CocoCaptionsDataset(path=str(DATA), size=SIZE)
    references = [dataset.reference(index) for index in range(len(dataset))]
    named = [read(reference["caption"]) for reference in references]
    digits, colours = np.array(named).T
    answers = generate(dataset)
    images = np.stack([np.frombuffer(each, np.uint8) for each in answers])
    real = like(named, held_out, 6)
    fresh = paint(held_out, REAL_IMAGES, np.random.default_rng([SEED, 7]))
    vae = diffusers.AutoencoderKL.from_pretrained(
        MODEL / "vae", torch_dtype=torch.float32, low_cpu_mem_usage=False
    )
    again = decode(vae, encode(vae, real))
    drawn = noise(np.random.default_rng([SEED, 8]), (len(dataset), CHANNELS, LATENT, LATENT))
    return {
        "captions": len(dataset),
        **score(answers, references),
        "named": seen(images.reshape(-1, SIZE, SIZE, 3), digits, colours),
        "real": score([each.tobytes() for each in real], references),
        "real_through_the_autoencoder": score([each.tobytes() for each in again], references),
        "autoencoder_psnr_db": round(
            float(-10 * np.log10(np.square((again - real.astype(float)) / 255).mean())), 3
        ),
        "of_other_captions": score(answers[1:] + answers[:1], references),
        "without_guidance": score(generate(dataset, guidance_scale=1.0), references),
        "of_noise": score([each.tobytes() for each in decode(vae, drawn)], references),
        "judge": seen(fresh.images, fresh.digits, fresh.colours),
        "dataset_digest": dataset.digest,
    }


def decode(vae: Any, latents: Tensor) -> NDArray[np.uint8]:
    """Return images of latents as the encoder gives them, shape (images, SIZE, SIZE, 3)."""
    with torch.inference_mode():
        pixels = vae.decode(latents).sample.clamp(-1, 1) * 127.5 + 127.5
    return np.asarray(pixels.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy())


def main() -> None:
    """Train, write, score."""
    assert __doc__
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    training, held_out = load_strokes(SEED)
    judge = train_judge(training)
    vae = train_autoencoder(training)
    pipe = make_pipeline(vae)
    train_denoiser(pipe, paint(training, TRAINING_IMAGES, np.random.default_rng([SEED, 4])))
    counts = {name: parameters(getattr(pipe, name)) for name in PARTS}
    scaling = pipe.vae.config.scaling_factor
    write_model(pipe)
    write_data()
    save_file(judge.state_dict(), SUITE / "judge.safetensors")
    write_statistics(held_out)
    record = {
        "seed": SEED,
        "steps": {
            "judge": JUDGE_PLAN.steps,
            "autoencoder": AUTOENCODER_PLAN.steps,
            "denoiser": UNET_PLAN.steps,
        },
        "batch": {
            "judge": JUDGE_BATCH,
            "autoencoder": AUTOENCODER_BATCH,
            "denoiser": UNET_BATCH,
        },
        "parameters": {**counts, "judge": parameters(judge)},
        "scaling_factor": scaling,
        "generation": GENERATION,
        **measure(held_out),
        "model_sha256": {
            name: sha256(next((MODEL / name).glob("*.safetensors"))) for name in PARTS
        },
        "judge_sha256": sha256(SUITE / "judge.safetensors"),
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, **TOLD)


if __name__ == "__main__":
    main()
