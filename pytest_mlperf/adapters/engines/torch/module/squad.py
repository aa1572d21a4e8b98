"""Run extractive question answering through transformers: start and end logits per word piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_mlperf.adapters.engines import broken, weight_files
from pytest_mlperf.adapters.engines.torch import _checkpoint as checkpoint
from pytest_mlperf.adapters.engines.torch.module._runner import Mismatch
from pytest_mlperf.extension import sha256

INPUTS = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
"""Names of the inputs in data set squad, and in transformers."""


class QuestionAnswering(torch.nn.Module):
    """Run a question-answering model of transformers on samples of data set squad."""

    batching = "pad"

    def __init__(self, model: Any, facts: dict[str, str]) -> None:
        super().__init__()
        self.model = model
        self.facts = facts
        config = model.config
        self._context = getattr(config, "max_position_embeddings", None)
        self._vocabulary = model.get_input_embeddings().num_embeddings
        # Models such as DistilBERT have no segments.
        self._segments = getattr(config, "type_vocab_size", 0) > 1

    def prepare(self, sample: Any) -> dict[str, Any]:
        """Convert a sample of data set squad to the arguments of `forward`, each (seq,)."""
        if not isinstance(sample, dict) or not INPUTS.keys() <= sample.keys():
            raise Mismatch(f"lacks one of {', '.join(INPUTS)}; use the data set squad")
        ids = sample["input_ids"]
        if self._context is not None and len(ids) > self._context:
            raise Mismatch(
                f"has {len(ids)} word pieces, but the model takes {self._context}; lower the data "
                "set's max_seq_length"
            )
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            raise Mismatch(
                f"has word piece id {ids.max()}, but the model's vocabulary has {self._vocabulary} "
                "word pieces; set the data set's vocab to the vocab.txt of this model"
            )
        return {
            name: sample[feature]
            for feature, name in INPUTS.items()
            if feature != "segment_ids" or self._segments
        }

    def forward(self, **batch: Any) -> Any:
        """Return start and end logits of each word piece, shape (batch, seq, 2)."""
        scores = self.model(**batch)
        return torch.stack((scores.start_logits, scores.end_logits), dim=-1)


def question_answering(
    *, model: str, weights: str = "checkpoint", attention: str = "sdpa"
) -> QuestionAnswering:
    """Load a model for question answering from a folder.

    Args:
        model: Folder with config.json and safetensors files; nothing is downloaded and no code of
            the folder is run.
        weights: "checkpoint"; or "dummy" for random weights.
        attention: Name of an attention implementation in transformers, such as "sdpa".
    """
    folder = Path(model)
    placement = {"dtype": torch.float32, "attention": attention, "device": torch.device("cpu")}
    auto = transformers.AutoModelForQuestionAnswering
    with checkpoint.quiet_and_offline():
        config = checkpoint.read_config(folder, checkpoint.QUESTION_ANSWERING)
        if weights == "dummy":
            loaded = checkpoint.make_dummy(auto, config, **placement)
            facts = {"weights": "dummy"}
        else:
            files = weight_files(folder)
            loaded = checkpoint.load(auto, folder, config, **placement)
            facts = {"weights_sha256": sha256(files)[:16]}
    if not all(bool(parameter.isfinite().all()) for parameter in loaded.parameters()):
        raise broken(folder, "a weight is NaN or infinite; copy the safetensors files here again")
    facts |= {
        "transformers": str(transformers.__version__),
        "model": type(loaded).__name__,
        "attention": attention,
    }
    return QuestionAnswering(loaded, facts)
