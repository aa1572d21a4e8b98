"""A model's folder without weights: its tokenizer knows a few words, one token for each."""

from __future__ import annotations

import json
from pathlib import Path


def save_model(folder: Path, numbers: int) -> Path:
    """Save it: "The answer is" are tokens 2 to 4, then come numbers from 0 on; 1 ends an answer."""
    import tokenizers
    import transformers

    words = ["?", "<end>", "The", "answer", "is", *map(str, range(numbers))]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="?", eos_token="<end>"
    ).save_pretrained(folder)
    (folder / "config.json").write_text(
        json.dumps({"eos_token_id": 1, "vocab_size": len(words)}), "utf-8"
    )
    return folder
