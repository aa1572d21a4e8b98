"""Small tokenizers, made on the spot in Hugging Face's files.

Importing this skips the module that does so where the libraries of the extra [lm] are missing.
Training is not repeatable to the last token, so each is made once per process.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
else:
    Tokenizer = pytest.importorskip("tokenizers").Tokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    pytest.importorskip("rouge_score")

if find_spec("transformers") is None:
    pytest.skip("needs pytest-mlperf[lm]", allow_module_level=True)

__all__ = [
    "NAMES",
    "TEXTS",
    "AutoTokenizer",
    "Tokenizer",
    "byte_level",
    "metaspace",
    "word_pieces",
    "write",
]


class AutoTokenizer:
    """The class of transformers, whose import loads torch."""

    @staticmethod
    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        from transformers import AutoTokenizer as Original

        return Original.from_pretrained(*arguments, **options)


TEXTS = [
    "The quick brown fox , it 's said , did n't jump over the lazy dog . Why ? Who knows !",
    "Naïve café — 日本語, and that's all: <s> is no token here.",
]

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")

NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def write(folder: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> Path:
    """Write a tokenizer as transformers does."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


@cache
def byte_level(special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    """Byte-level BPE, as Llama 3 and GPT-2 have."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


@cache
def metaspace(special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    """BPE with word starts marked and bytes for rare characters, as Llama 2 has."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*special, *bytes_], show_progress=False
    )
    made.train_from_iterator([TEXTS[0]], trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] not in bytes_]
    return Tokenizer.from_str(json.dumps(content))


@cache
def word_pieces() -> Tokenizer:
    """WordPiece, which BERT has: no BPE, so spaces are cleaned up where the settings say so."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=list(SPECIAL), show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made
