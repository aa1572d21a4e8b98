"""What the tiny twins of Llama 3.1 share: special tokens, shape, positions and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_language import byte_pairs, write_model
from tokenizers import AddedToken, Tokenizer, processors
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|finetune_right_pad_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>"),
)
"""Of Llama 3.1's tokenizer, whose identifiers begin at 128000."""
BEGIN, END_TEXT, END, PAD, HEADER, HEADER_END = range(len(SPECIAL))
TURN_ENDS = (END_TEXT, END)
"""With either an answer ends; those of the twins with `<|eot_id|>`."""


def llama3_tokenizer(
    texts: Sequence[str],
    vocabulary: int,
    *,
    common: Sequence[str] = (),
    words: str | None = None,
) -> Tokenizer:
    """Train byte-level BPE; a begin token comes before each text.

    Args:
        texts: What it is trained on.
        vocabulary: How many tokens there are with the special and the common ones.
        common: Texts that get a token each.
        words: Pattern of what merges stay within; None is GPT-2's.
    """
    tokenizer = byte_pairs(texts, vocabulary - len(common), SPECIAL, words=words)
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in common])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[BEGIN]} $A", special_tokens=[(SPECIAL[BEGIN], BEGIN)]
    )
    return tokenizer


def llama3(
    *, vocabulary: int, hidden: int, layers: int, heads: int, positions: int, trained: int
) -> LlamaForCausalLM:
    """Return an untrained model of the shape of Llama 3.1.

    Four heads share keys and values, a layer within is 3.5 times as wide, embeddings are not tied,
    and low frequencies of the rotation are divided by 8, as in Llama 3.1 8B.

    Args:
        vocabulary: Tokens.
        hidden: Size of a state.
        layers: How many.
        heads: That ask.
        positions: Tokens that it takes.
        trained: Positions from which on frequencies count as low, 8192 in Llama 3.1.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=hidden * 7 // 2,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 4,
            max_position_embeddings=positions,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": trained,
            },
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=BEGIN,
            eos_token_id=list(TURN_ENDS),
            pad_token_id=PAD,
        )
    )


def write_llama3(model: Any, tokenizer: Tokenizer, folder: Path, *, positions: int) -> None:
    """Write a model that generates the likeliest tokens, and its tokenizer."""
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=BEGIN, eos_token_id=list(TURN_ENDS), pad_token_id=PAD
    )
    names = {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD]}
    write_model(model, tokenizer, folder, positions=positions, names=names)
