"""Prompts with pictures or sound in shapes that vLLM takes, and in others that it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

START = [1, 2]


class Shape(NamedTuple):
    """A prompt, and what vLLM raises for it: the error's name and words of it; both "" for none."""

    prompt: Any
    error: str = ""
    words: str = ""


def picture() -> Any:
    from PIL import Image

    return Image.new("RGB", (48, 48), "red")


def clip() -> Any:
    return np.zeros(16_000, np.float32), 16_000


def film() -> Any:
    frames = {"fps": 1.0, "duration": 2.0, "total_num_frames": 2, "frames_indices": [0, 1]}
    return np.zeros((2, 48, 48, 3), np.uint8), {**frames, "video_backend": "opencv"}


def prompt(ids: Sequence[int], **media: Any) -> dict[str, Any]:
    return {"prompt_token_ids": list(ids), "multi_modal_data": media}


def pair(encoder: Any, decoder: Any) -> dict[str, Any]:
    return {"encoder_prompt": encoder, "decoder_prompt": decoder}


def at_most(number: int, kind: str) -> tuple[str, str]:
    return "VLLMValidationError", f"At most {number} {kind}(s) may be provided in one prompt."


def chats(token: int) -> Mapping[str, Shape]:
    """Return prompts of a model in which this token stands for a picture."""
    ids, pictures = [8, token, 9], [picture()]
    start = {"prompt_token_ids": START}
    return {
        "ids and a picture": Shape(prompt(ids, image=pictures)),
        "a picture without a list": Shape(prompt(ids, image=picture())),
        "sound": Shape(
            prompt(ids, audio=clip()),
            *("RuntimeError", "Audio resampling is not supported when `target_sr` is not"),
        ),
        "a film": Shape(prompt(ids, video=[film()]), *at_most(0, "video")),
        "an encoder's prompt": Shape(
            pair(prompt(ids, image=pictures), start),
            *("TypeError", "Cannot pass encoder-decoder prompt to decoder-only models"),
        ),
        "a picture without a place": Shape(
            prompt([8, 9], image=pictures),
            *("AssertionError", "Failed to apply prompt replacement for mm_items['image'][0]"),
        ),
        "no ids": Shape(
            {"multi_modal_data": {"image": pictures}},
            *("TypeError", "must contain text, tokens, or embeddings"),
        ),
    }


def speech() -> Mapping[str, Shape]:
    """Return prompts of a model with an encoder for sound."""
    heard, start = prompt([], audio=clip()), {"prompt_token_ids": START}
    return {
        "both prompts": Shape(pair(heard, start)),
        "sound for the decoder": Shape(
            pair(start, heard), *("TypeError", "Cannot pass multi-modal inputs to decoder prompt")
        ),
        "no prompt for the decoder": Shape(
            {"encoder_prompt": heard}, *("KeyError", "decoder_prompt")
        ),
        "a picture": Shape(pair(prompt([], image=[picture()]), start), *at_most(0, "image")),
        "two clips": Shape(pair(prompt([], audio=[clip(), clip()]), start), *at_most(1, "audio")),
    }


def refusals(model: str, kind: str) -> dict[str, tuple[str, str]]:
    """Return the error name and message that `vllm` raises in this Python, by shape.

    Args:
        model: Folder of a model for inputs of this kind: "chats" or "speech".
    """
    from vllm.entrypoints.llm import LLM
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    limits = {"limit_mm_per_prompt": {"video": 0}} if kind == "chats" else {}
    llm = LLM(
        model=model,
        dtype="float32",
        max_num_seqs=4,
        enforce_eager=True,
        gpu_memory_utilization=0.1,
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
        skip_tokenizer_init=False,
        generation_config="vllm",
        **limits,
    )
    params = SamplingParams(
        temperature=0, max_tokens=2, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )
    raised = {}
    try:
        for name, shape in shapes(model, kind).items():
            raised[name] = "", ""
            try:
                llm.generate([shape.prompt], params, use_tqdm=False)
            except Exception as error:
                raised[name] = type(error).__name__, str(error)
    finally:
        llm.llm_engine.engine_core.shutdown()
    return raised


def shapes(model: str, kind: str) -> Mapping[str, Shape]:
    if kind == "speech":
        return speech()
    config = json.loads((Path(model) / "config.json").read_text("utf-8"))
    return chats(config["image_token_id"])


def differences(raised: Mapping[str, Sequence[str]], model: str, kind: str) -> list[str]:
    """Return a sentence for each shape that raised a wrong error."""
    return [
        f"{name}: {': '.join(raised[name]) or 'taken'}, and not {shape.error}: {shape.words}"
        for name, shape in shapes(model, kind).items()
        if raised[name][0] != shape.error or shape.words not in raised[name][1]
    ]


if __name__ == "__main__":
    print(json.dumps(refusals(*sys.argv[1:])))
