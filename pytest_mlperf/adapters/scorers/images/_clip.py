"""Compute the CLIP score of images and captions by OpenAI's CLIP ViT-B/32."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError, UnavailableError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import scorer_error

MODEL = "openai/clip-vit-base-patch32"
"""Name on the Hugging Face Hub of the weights that open_clip calls ViT-B-32 "openai"."""

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER, WHOLE_TOKENIZER = ("vocab.json", "merges.txt"), "tokenizer.json"
"""Either both of the former, or the latter."""

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of red, green and blue on the scale 0-1, as CLIP was trained."""


def look_for_clip(folder: Path) -> None:
    """Raise UnavailableError if the folder lacks a file that `ClipScores` needs; read none."""
    missing = [
        " or ".join(names)
        for names in (
            ("config.json",),
            WEIGHT_FILES,
            *((name, WHOLE_TOKENIZER) for name in TOKENIZER),
        )
        if not any((folder / name).is_file() for name in names)
    ]
    if missing:
        lacks = "lacks" if folder.is_dir() else "does not exist; it needs"
        raise UnavailableError(
            f"{folder}: this folder {lacks} {' and '.join(missing)}; put the files of {MODEL} from "
            "the Hugging Face Hub there, or set the scorer's clip to the folder that has them"
        )


class ClipScores:
    """Compute 100 x the cosine similarity of the embeddings of each image and its caption.

    As in MLPerf's reference, which uses open_clip (text_to_image/tools/clip/clip_encoder.py of
    https://github.com/mlcommons/inference), images are resized to 224 pixels by bicubic
    interpolation and cropped at the centre, captions are HTML-unescaped and truncated to 77 tokens,
    and the score is not clipped at 0. There are two differences: images are scored in batches,
    which changes the last digits of float32; and wrongly decoded characters in captions are not
    repaired (open_clip uses the library ftfy), but the official captions have none.
    """

    def __init__(self, folder: Path, *, device: str) -> None:
        """Load model and tokenizer from a folder onto a torch device, never from the network."""
        look_for_clip(folder)
        try:
            import PIL.Image  # noqa: F401 - reported together with the others
            import torch
            from transformers import CLIPModel, CLIPTokenizer
        except ImportError as error:
            raise not_installed("scorer clip_fid", str(error.name), "diffusion") from error
        _check_kind(folder)
        try:
            model, report = CLIPModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
            self._tokenizer: Any = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers raises many types
            first = str(error).strip().partition("\n")[0]
            raise _broken(folder, f"transformers cannot load it ({first})") from error
        if missing := sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])}):
            raise _broken(folder, f"{len(missing)} weights are missing, such as {missing[0]!r}")
        self._model: Any = model.eval().to(device)
        self._device = device
        self._side = int(model.config.vision_config.image_size)
        self._tokens = int(model.config.text_config.max_position_embeddings)

    def __call__(self, images: NDArray[np.uint8], captions: Sequence[str]) -> NDArray[np.float64]:
        """Return one score per RGB image, -100 to 100; images are (images, height, width, 3)."""
        import torch

        texts = self._tokenizer(
            [html.unescape(html.unescape(caption)).strip() for caption in captions],
            padding=True,
            truncation=True,
            max_length=self._tokens,
            return_tensors="pt",
        )
        pixels = np.stack([preprocess(image, self._side) for image in images])
        with torch.inference_mode():
            embeddings = self._model(
                input_ids=texts["input_ids"].to(self._device),
                attention_mask=texts["attention_mask"].to(self._device),
                pixel_values=torch.from_numpy(pixels).to(self._device),
            )
            cosines = (embeddings.image_embeds * embeddings.text_embeds).sum(dim=-1).cpu().numpy()
        return 100 * np.asarray(cosines, np.float64)


def preprocess(image: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    """Resize, crop and normalise an RGB image (height, width, 3) to CLIP's input (3, side, side).

    The shorter side is resized to `side` pixels by Pillow's bicubic filter, the longer one in
    proportion, rounded down; then the image is cropped at the centre.
    """
    from PIL import Image

    height, width, _ = image.shape
    shorter = min(height, width)
    new_height, new_width = side * height // shorter, side * width // shorter
    resized = Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BICUBIC)
    top, left = round((new_height - side) / 2), round((new_width - side) / 2)
    cropped = np.asarray(resized)[top : top + side, left : left + side]
    levels = cropped.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    mean, std = np.array([MEAN, STD], np.float32)[:, :, None, None]
    return np.ascontiguousarray((levels - mean) / std)


def _check_kind(folder: Path) -> None:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _broken(folder, f"config.json is not JSON ({error})") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "clip":
        raise _broken(folder, f"its model_type is {kind!r}, not 'clip'")


def _broken(folder: Path, defect: str) -> RunError:
    return scorer_error(
        f"{folder}: cannot be used as CLIP model: {defect}; download the files of {MODEL} from the "
        "Hugging Face Hub, and set the scorer's clip to their folder",
    )
