"""Prepare calibration prompts: captions for a pipeline, tokens for a language model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.engines.llm.generation import TokenPrompts
from pytest_mlperf.adapters.engines.llm.model_folder import load_tokenizer, read_config


def captions(_: Path, dataset: Any, indices: list[int]) -> list[str]:
    """Return the caption of each sample: its text, or its field "caption"."""
    texts = []
    for index in indices:
        sample = dataset.input(index)
        text = sample.get("caption") if isinstance(sample, dict) else sample
        if not isinstance(text, str):
            raise RunError(
                "build",
                f'calibration: sample {index} is not text and has no "caption", which a '
                "pipeline needs; use the data set coco_captions",
            )
        texts.append(text)
    return texts


def token_ids(folder: Path, dataset: Any, indices: list[int]) -> list[list[int]]:
    """Return calibration samples as token ids; texts are encoded by the model's tokenizer."""
    tokenizer = None
    if isinstance(dataset.input(indices[0]), str):
        tokenizer, _ = load_tokenizer("calibration", folder)
    config = read_config(folder)
    prompts = TokenPrompts(
        dataset=dataset,
        tokenizer=tokenizer,
        vocabulary=config.vocabulary or sys.maxsize,
        context=config.context,
        max_new_tokens=0,
        max_prompt_tokens=config.context,  # longer prompts are cut: a builder generates nothing
    )
    try:
        prompts.load(indices)
    except RunError as error:
        raise RunError("build", str(error)) from error
    return [prompts[index] for index in indices]
