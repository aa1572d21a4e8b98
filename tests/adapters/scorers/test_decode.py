from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.scorers.text import BATCH_SAMPLES, Decoder, DecoderOptions, clean
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import (
    NAMES,
    TEXTS,
    AutoTokenizer,
    Tokenizer,
    byte_level,
    metaspace,
    word_pieces,
    write,
)

pytestmark = pytest.mark.torch

Make = Callable[[], Tokenizer]

AS_FILE = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}
LLAMA = {"tokenizer_class": "LlamaTokenizer", **NAMES}
CLEAN = {"clean_up_tokenization_spaces": True}
PAD = {"content": "<pad>", "special": True}
LOUD = {"content": "fox", "special": True}


def gpt2() -> Tokenizer:
    return byte_level(("<|endoftext|>",))


def gpt2_without_bytes() -> Tokenizer:
    return metaspace(("<unk>", "<|endoftext|>"))


LIGHT: dict[str, tuple[Make, dict[str, Any]]] = {
    "byte-level": (byte_level, AS_FILE),
    "byte-level, named by transformers 5": (
        byte_level,
        {**AS_FILE, "tokenizer_class": "TokenizersBackend"},
    ),
    "byte-level, clean-up asked for but BPE": (byte_level, {**AS_FILE, **CLEAN}),
    "byte-level, tokens listed": (byte_level, {**AS_FILE, "added_tokens_decoder": {"3": PAD}}),
    "byte-level Llama 3 under Llama's name": (byte_level, LLAMA),
    "Llama 2": (metaspace, LLAMA),
    "Llama 2, fast": (metaspace, {**LLAMA, "tokenizer_class": "LlamaTokenizerFast"}),
    "GPT-2": (gpt2, {"tokenizer_class": "GPT2Tokenizer"}),
    "word pieces, clean-up": (word_pieces, {**AS_FILE, **CLEAN}),
    "word pieces": (word_pieces, AS_FILE),
}
"""Folders that are decoded without transformers."""

FULL: dict[str, tuple[Make, dict[str, Any]]] = {
    "a special token that only the settings name": (
        byte_level,
        {**AS_FILE, "additional_special_tokens": ["fox"]},
    ),
    "a listed token that the file does not have": (
        byte_level,
        {**AS_FILE, "added_tokens_decoder": {"400": LOUD}},
    ),
    "special tokens of the class": (byte_level, {"tokenizer_class": "GPT2Tokenizer"}),
    "a decoder of the class": (gpt2_without_bytes, {"tokenizer_class": "GPT2Tokenizer"}),
    "Llama without a space in front": (metaspace, {**LLAMA, "add_prefix_space": False}),
}
"""Folders that transformers reads in its own way."""


def int64(*ids: int) -> bytes:
    return np.array(ids, "<i8").tobytes()


def decoder(folder: Path, **options: Any) -> Decoder:
    model = options.pop("model", str(folder))
    return Decoder("rouge", model, DecoderOptions(**options))


def samples(tokenizer: Tokenizer, highest: int) -> list[list[int]]:
    """Return ids as models give them: text, special tokens in between, nothing, and noise."""
    rng = random.Random(4)
    texts = [tokenizer.encode(text).ids for text in TEXTS]
    noise = [[rng.randint(0, highest) for _ in range(rng.randint(1, 60))] for _ in range(40)]
    return [[], [2], [1, *texts[0], 2], [*texts[1], 0, *texts[0], 2, 2], *texts, *noise]


def test_text_is_what_transformers_decodes(tmp_path: Path) -> None:
    for name, (make, settings) in {**LIGHT, **FULL}.items():
        folder = write(tmp_path / name, make(), settings)
        original = AutoTokenizer.from_pretrained(folder)
        ids = samples(make(), highest=max(original.get_vocab().values()))

        decoded = decoder(folder).decode([int64(*one) for one in ids])

        assert decoded.texts == original.batch_decode(ids, skip_special_tokens=True), name
        assert decoded.tokens == [len(one) for one in ids]


def test_transformers_is_needed_only_where_its_text_could_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if Mistral's own files are in the tokenizer's folder."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    mistral = write(tmp_path / "mistral", byte_level(), AS_FILE)
    (mistral / "tekken.json").write_text("{}", "utf-8")
    folders = {
        name: write(tmp_path / name, make(), settings)
        for name, (make, settings) in {**LIGHT, **FULL}.items()
    }
    needing = [mistral, *(folders[name] for name in FULL)]
    rows = [(folder, r"needs the library transformers, .*pip install ") for folder in needing]

    for name in LIGHT:
        assert decoder(folders[name]).decode([int64(2, 0, 2)]).tokens == [3]
    assert (
        differences(lambda folder: decoder(folder).decode([int64(2)]), EnvironmentFault, rows) == []
    )


def test_code_that_a_tokenizer_brings_along_is_not_run(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    folder = write(tmp_path, byte_level(), settings)
    (folder / "own.py").write_text("raise SystemExit('ran')", "utf-8")

    with pytest.raises(RunError, match="cannot be read"):
        decoder(folder).decode([int64(2)])


def test_spaces_before_punctuation_go_where_that_is_asked_for(tmp_path: Path) -> None:
    """The settings ask for it; transformers obeys unless the tokenizer is a BPE."""
    rows: list[tuple[Make, bool | None, bool]] = [
        (byte_level, None, False),
        (byte_level, False, False),
        (byte_level, True, True),
        (word_pieces, None, True),
        (word_pieces, False, False),
        (word_pieces, True, True),
    ]
    more: list[dict[str, Any]] = [{}, {"additional_special_tokens": ["fox"]}]
    for (make, clean_up, cleaned), extra in product(rows, more):
        folder = write(tmp_path, make(), {**AS_FILE, **CLEAN, **extra})
        ids = make().encode("It is so , he said .").ids
        spaced = make().decode(ids)

        texts = decoder(folder, clean_up=clean_up).decode([int64(*ids)]).texts

        assert clean(spaced) != spaced
        assert texts == [clean(spaced) if cleaned else spaced], (make, clean_up, extra)


def test_cleaning_up_is_what_transformers_does(tmp_path: Path) -> None:
    text = "a . b ? c ! d , e ' f n't g 'm h 's i 've j 're k  . l"
    original = AutoTokenizer.from_pretrained(write(tmp_path, byte_level(), AS_FILE))

    assert clean(text) == original.clean_up_tokenization(text)


def test_more_samples_than_are_decoded_at_once_keep_their_order(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), AS_FILE)
    texts = [f"sample {number}" for number in range(BATCH_SAMPLES + 2)]
    ids = [one.ids for one in byte_level().encode_batch(texts)]

    assert decoder(folder).decode([int64(*one) for one in ids]).texts == texts
    narrow = [np.array(one, "<i4").tobytes() for one in ids]
    assert decoder(folder, dtype="int32").decode(narrow).texts == texts


def test_wrong_ids_and_a_damaged_tokenizer_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "plain", byte_level(), AS_FILE)
    spaced = write(tmp_path / "spaced", byte_level(), {**AS_FILE, "add_prefix_space": True})
    damaged = write(tmp_path / "damaged", byte_level(), AS_FILE)
    (damaged / "tokenizer.json").write_text("{", "utf-8")
    size = byte_level().get_vocab_size()
    rows: list[tuple[Path, str, list[bytes], str]] = [
        (folder, "int64", [b"", bytes(12)], "output of sample 1 has 12 bytes, .* int64 token ids"),
        (folder, "int32", [b"", bytes(6)], "output of sample 1 has 6 bytes, .* int32 token ids"),
        (damaged, "int64", [int64(2)], f"the tokenizer in {damaged} cannot be read"),
        *(
            (
                at,
                "int64",
                [int64(5, 6), b"", int64(wrong, 8), int64(wrong)],
                f"token {wrong} of sample 2 .* {size} tokens up to {size - 1};",
            )
            for wrong in (-1, 330, 2**40)
            for at in (folder, spaced)
        ),
    ]

    def decode(at: Path, dtype: str, outputs: list[bytes]) -> None:
        decoder(at, dtype=dtype).decode(outputs)

    assert differences(decode, RunError, rows) == []


def test_a_folder_without_a_tokenizer_is_unavailable_and_wrong_options_are_refused(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "tokenizer", byte_level(), AS_FILE)
    folders = [
        (tmp_path / "gone", r"the folder .*gone does not exist"),
        (tmp_path, r"holds no tokenizer \(looked for tokenizer\.json"),
    ]
    options: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "float32"}, "dtype = 'float32' is not one of int32, int64"),
        ({"clean_up": "yes"}, "clean_up = 'yes' is not true or false"),
        ({"model": None}, "neither its option tokenizer nor the workload's model"),
    ]

    ids = byte_level().encode("here").ids
    elsewhere = decoder(tmp_path / "gone", tokenizer=str(folder))
    assert elsewhere.decode([int64(*ids)]).texts == ["here"]
    assert differences(decoder, UnavailableError, folders) == []
    assert differences(lambda options: decoder(tmp_path, **options), SuiteError, options) == []
