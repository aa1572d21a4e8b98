"""Load the tokenizer of a language model so that it decodes as Hugging Face transformers does.

The light library `tokenizers` gives the same text where transformers would only hand over to it;
elsewhere transformers itself is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
"""A folder with one of these has a tokenizer."""

CONFIG, TOKENS = "tokenizer_config.json", "tokenizer.json"

LIGHT, FULL = "tokenizers", "transformers"
"""The libraries that read them."""

CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""What transformers' `clean_up_tokenization_spaces` replaces, in this order."""

CLEAN_UP_SWITCH = "clean_up_tokenization_spaces"
CLEAN_UP_FORCED = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"

LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
"""How transformers' LlamaTokenizer decodes, as tokenizer.json would say it."""

SPECIAL_BY_DEFAULT = {
    "LlamaTokenizer": {"<unk>", "<s>", "</s>"},
    "GPT2Tokenizer": {"<|endoftext|>"},
}
"""Tokens that a class of transformers knows as special, whatever the files say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """What decoding needs of a tokenizer.

    Attributes:
        decode: Gives the text of each list of ids, special tokens left out.
        ids: Every id that stands for a token.
    """

    decode: Callable[[list[list[int]]], list[str]]
    ids: Collection[int]


def load_tokenizer(folder: Path, clean_up: bool | None) -> Tokenizer:
    """Load the tokenizer in a folder of Hugging Face's files.

    Args:
        folder: Where the files are.
        clean_up: Whether `clean` is applied; None does as transformers 5 does: where
            tokenizer_config.json asks for it, and the tokenizer is no BPE.

    Raises:
        ImportError: The library is not installed.
        Exception: Whatever the library raises on files it cannot read.
    """
    if library_for(folder) == LIGHT:
        settings, content = map(_read, (folder / CONFIG, folder / TOKENS))
        return _load_light(folder, _cleans(settings, content) if clean_up is None else clean_up)
    return _load_full(folder, clean_up)


def library_for(folder: Path) -> str:
    """Return which library reads the tokenizer in a folder: "tokenizers" or "transformers".

    A file that is no JSON is for either to refuse.
    """
    if (folder / "tekken.json").exists():
        return FULL
    try:
        settings, content = map(_read, (folder / CONFIG, folder / TOKENS))
        return LIGHT if is_light(settings, content, _named(folder)) else FULL
    except Exception:  # files that cannot be read; whatever reads them next says so
        return LIGHT


def clean(text: str) -> str:
    """Remove spaces before punctuation and English short forms, as transformers does."""
    for spaced, close in CLEAN_UP:
        text = text.replace(spaced, close)
    return text


def is_light(settings: Mapping[str, Any], content: Mapping[str, Any], named: set[str]) -> bool:
    """Return whether tokenizer.json alone decodes as transformers' AutoTokenizer does.

    So it is where transformers uses that file's decoder or one that equals it, and knows no
    special token besides the file's own.

    Args:
        settings: Content of tokenizer_config.json, empty without one.
        content: Content of tokenizer.json, empty without one.
        named: Special tokens that the other files name.
    """
    kind = str(settings.get("tokenizer_class")).removesuffix("Fast")
    decoder = content.get("decoder") or {}
    added = {token["id"]: token for token in content.get("added_tokens", ())}
    special = {token["content"] for token in added.values() if token["special"]}
    if kind in {"PreTrainedTokenizer", "TokenizersBackend"}:
        decodes = bool(content)
    elif kind == "LlamaTokenizer" and settings.get("add_prefix_space") is not False:
        decodes = decoder == LLAMA_DECODER or decoder.get("type") == "ByteLevel"
    else:
        decodes = kind == "GPT2Tokenizer" and decoder.get("type") == "ByteLevel"
    agreed = all(
        (token["content"], bool(token.get("special")))
        == (added.get(int(number), {}).get("content"), added.get(int(number), {}).get("special"))
        for number, token in settings.get("added_tokens_decoder", {}).items()
    )
    return decodes and agreed and named | SPECIAL_BY_DEFAULT.get(kind, set()) <= special


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return content


def _named(folder: Path) -> set[str]:
    """Return the special tokens that the files beside tokenizer.json name."""
    found: set[str] = set()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in _read(folder / name).items():
            if key.endswith(("_token", "_special_tokens")):
                found |= _texts(value)
    return found | _read(folder / "added_tokens.json").keys()


def _texts(value: Any) -> set[str]:
    """Return the tokens of an entry: a text, an object with a content, or several of these."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        return {value["content"]} if "content" in value else _texts(list(value.values()))
    if isinstance(value, list):
        return {text for one in value for text in _texts(one)}
    return set()


def _cleans(settings: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    is_bpe = content["model"].get("type", "BPE") == "BPE"
    return bool(settings.get(CLEAN_UP_SWITCH) and (settings.get(CLEAN_UP_FORCED) or not is_bpe))


def _load_light(folder: Path, clean_up: bool) -> Tokenizer:
    import tokenizers

    found = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def decode(ids: list[list[int]]) -> list[str]:
        texts: list[str] = found.decode_batch(ids, skip_special_tokens=True)
        return [clean(text) for text in texts] if clean_up else texts

    return Tokenizer(decode=decode, ids=found.get_vocab().values())


def _load_full(folder: Path, clean_up: bool | None) -> Tokenizer:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    own = None if clean_up is None else False

    def decode(ids: list[list[int]]) -> list[str]:
        texts = found.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=own)
        return [clean(text) for text in texts] if clean_up else list(texts)

    return Tokenizer(decode=decode, ids=found.get_vocab().values())
