from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.scorers.text import BATCH, Decoder, DecoderOptions, clean
from tests.scorers.tokenizers_made_here import (
    NAMES,
    TEXTS,
    AutoTokenizer,
    Tokenizer,
    byte_level,
    metaspace,
    word_pieces,
    write,
)

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
    return Decoder.of("rouge", model, DecoderOptions(**options))


def samples(tokenizer: Tokenizer, highest: int) -> list[list[int]]:
    """Return ids as models give them: text, special tokens in between, nothing, and noise."""
    rng = random.Random(4)
    texts = [tokenizer.encode(text).ids for text in TEXTS]
    noise = [[rng.randint(0, highest) for _ in range(rng.randint(1, 60))] for _ in range(40)]
    return [[], [2], [1, *texts[0], 2], [*texts[1], 0, *texts[0], 2, 2], *texts, *noise]


@pytest.mark.parametrize("name", [*LIGHT, *FULL])
def test_text_is_what_transformers_decodes(name: str, tmp_path: Path) -> None:
    make, settings = {**LIGHT, **FULL}[name]
    folder = write(tmp_path, make(), settings)
    original = AutoTokenizer.from_pretrained(folder)
    ids = samples(make(), highest=max(original.get_vocab().values()))

    decoded = decoder(folder).decode([int64(*one) for one in ids])

    assert decoded.texts == original.batch_decode(ids, skip_special_tokens=True)
    assert decoded.tokens == [len(one) for one in ids]


@pytest.mark.parametrize("name", LIGHT)
def test_transformers_is_not_needed_where_it_would_only_hand_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, settings = LIGHT[name]
    monkeypatch.setitem(sys.modules, "transformers", None)

    decoded = decoder(write(tmp_path, make(), settings)).decode([int64(2, 0, 2)])

    assert decoded.tokens == [3]


@pytest.mark.parametrize("name", FULL)
def test_transformers_is_needed_where_its_text_could_differ(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, settings = FULL[name]
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(EnvironmentFault, match=r"needs transformers .*'pytest-mlperf\[lm\]'"):
        decoder(write(tmp_path, make(), settings)).decode([int64(2)])


def test_transformers_reads_the_other_files_that_mistral_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, byte_level(), AS_FILE)
    (folder / "tekken.json").write_text("{}", "utf-8")
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(EnvironmentFault, match="needs transformers"):
        decoder(folder).decode([int64(2)])


def test_code_that_a_tokenizer_brings_along_is_not_run(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    folder = write(tmp_path, byte_level(), settings)
    (folder / "own.py").write_text("raise SystemExit('ran')", "utf-8")

    with pytest.raises(RunError, match="cannot be read"):
        decoder(folder).decode([int64(2)])


@pytest.mark.parametrize("more", [{}, {"additional_special_tokens": ["fox"]}])
@pytest.mark.parametrize(
    ("make", "clean_up", "cleaned"),
    [
        (byte_level, None, False),
        (byte_level, False, False),
        (byte_level, True, True),
        (word_pieces, None, True),
        (word_pieces, False, False),
        (word_pieces, True, True),
    ],
)
def test_spaces_before_punctuation_go_where_that_is_asked_for(
    make: Make, clean_up: bool | None, cleaned: bool, more: dict[str, Any], tmp_path: Path
) -> None:
    """The settings ask for it; transformers heeds that where the tokenizer is no BPE."""
    folder = write(tmp_path, make(), {**AS_FILE, **CLEAN, **more})
    ids = make().encode("It is so , he said .").ids
    spaced = make().decode(ids)

    texts = decoder(folder, clean_up=clean_up).decode([int64(*ids)]).texts

    assert clean(spaced) != spaced
    assert texts == [clean(spaced) if cleaned else spaced]


def test_cleaning_up_is_what_transformers_does(tmp_path: Path) -> None:
    text = "a . b ? c ! d , e ' f n't g 'm h 's i 've j 're k  . l"
    original = AutoTokenizer.from_pretrained(write(tmp_path, byte_level(), AS_FILE))

    assert clean(text) == original.clean_up_tokenization(text)


def test_more_samples_than_are_decoded_at_once_keep_their_order(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), AS_FILE)
    texts = [f"sample {number}" for number in range(BATCH + 2)]
    ids = [one.ids for one in byte_level().encode_batch(texts)]

    assert decoder(folder).decode([int64(*one) for one in ids]).texts == texts


def test_token_ids_may_be_of_32_bits(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), AS_FILE)
    ids = byte_level().encode("fox").ids

    decoded = decoder(folder, dtype="int32").decode([np.array(ids, "<i4").tobytes()])

    assert decoded.texts == ["fox"]


@pytest.mark.parametrize(("dtype", "size"), [("int64", 12), ("int32", 6)])
def test_an_output_that_is_no_list_of_ids_names_its_sample(
    dtype: str, size: int, tmp_path: Path
) -> None:
    folder = write(tmp_path, byte_level(), AS_FILE)

    with pytest.raises(
        RunError, match=f"output of sample 1 has {size} bytes, .* {dtype} token ids"
    ) as caught:
        decoder(folder, dtype=dtype).decode([b"", bytes(size)])

    assert caught.value.layer == "scorer"


@pytest.mark.parametrize("wrong", [-1, 330, 2**40])
@pytest.mark.parametrize("settings", [AS_FILE, {**AS_FILE, "add_prefix_space": True}])
def test_an_id_outside_the_vocabulary_names_its_sample(
    settings: dict[str, Any], wrong: int, tmp_path: Path
) -> None:
    folder = write(tmp_path, byte_level(), settings)
    size = byte_level().get_vocab_size()

    with pytest.raises(
        RunError, match=f"token {wrong} of sample 2 .* {size} tokens up to {size - 1};"
    ) as caught:
        decoder(folder).decode([int64(5, 6), b"", int64(wrong, 8), int64(wrong)])

    assert caught.value.layer == "scorer"


def test_a_damaged_tokenizer_names_its_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), AS_FILE)
    (folder / "tokenizer.json").write_text("{", "utf-8")

    with pytest.raises(RunError, match=f"the tokenizer in {folder} cannot be read"):
        decoder(folder).decode([int64(2)])


def test_without_a_folder_it_says_what_to_set() -> None:
    with pytest.raises(SuiteError, match="neither its option tokenizer nor the workload's model"):
        Decoder.of("rouge", None, DecoderOptions())


def test_a_folder_that_is_not_here_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the folder .*gone is not here"):
        decoder(tmp_path / "gone")


def test_a_folder_without_a_tokenizer_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"holds no tokenizer \(looked for tokenizer\.json"):
        decoder(tmp_path)


def test_the_option_tokenizer_wins_over_the_model(tmp_path: Path) -> None:
    folder = write(tmp_path / "tokenizer", byte_level(), AS_FILE)

    assert decoder(tmp_path / "gone", tokenizer=str(folder)).folder == folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "dtype = 'float32' is unknown; valid are int32, int64"),
        ({"clean_up": "yes"}, "clean_up = 'yes' is neither true nor false"),
    ],
)
def test_a_wrong_option_says_what_is_valid(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SuiteError, match=message):
        decoder(tmp_path, **options)
