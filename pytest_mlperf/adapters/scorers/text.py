"""Decode token ids to text, and extract an answer, as MLPerf's reference scripts do."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pytest_mlperf import EnvironmentFault, Scores, SuiteError, UnavailableError
from pytest_mlperf.adapters.conventions import lfs_pointer
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import ScorerBase, require_choice, require_flag, scorer_error
from pytest_mlperf.extension import require_options

NEXT_QUESTION = "\nQ:"
"""End of the answer; a model may continue with a question of its own."""

DELIMITER = "The answer is"

NUMBER = re.compile(r"-?[\d,]*\.?\d+")
"""A number, with optional sign, commas between digits, and point."""


def answer(text: str) -> str:
    """Return the number after the last "The answer is", else the last number, without commas.

    Returns "" if there is no number. Source: language/mixtral-8x7b/evaluate-accuracy.py of
    https://github.com/mlcommons/inference.
    """
    answered = text.partition(NEXT_QUESTION)[0]
    _, delimiter, rest = answered.rpartition(DELIMITER)
    first = NUMBER.search(rest) if delimiter else None
    if first is not None:
        return first[0].replace(",", "")
    numbers: list[str] = NUMBER.findall(answered)
    return numbers[-1].replace(",", "") if numbers else ""


def is_right(text: str, target: str) -> bool:
    """Return whether the number in a text equals `target`, which has no commas, as float64."""
    try:
        return float(answer(text)) == float(target)
    except ValueError:
        return False


TOKEN_DTYPES = {"int32": "<i4", "int64": "<i8"}
BATCH_SAMPLES = 1024
"""Samples decoded per batch: their ids become Python numbers, which need more memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """Hold the decoded outputs of a model.

    Attributes:
        texts: Text of each sample, without special tokens unless the decoder retains them.
        tokens: Number of tokens of each output, including special ones.
    """

    texts: list[str]
    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """Options of all scorers that decode text.

    Attributes:
        tokenizer: Folder of the tokenizer, if it is not in the model's folder.
        dtype: Type of the token ids in an output, little-endian: "int32" or "int64".
        clean_up: Whether spaces before punctuation are removed from decoded text, which can change
            programs, but not numbers. None follows transformers 5: true if tokenizer_config.json
            has clean_up_tokenization_spaces and the model is not BPE. true follows transformers 4,
            as MLPerf's references do, and cleans BPE too: for Llama 3.1 it gives the references'
            text except for " n't".
    """

    tokenizer: str | None = None
    dtype: str = "int64"
    clean_up: bool | None = None

    @property
    def decodes(self) -> bool:
        """Whether outputs are token ids, which have to be decoded with a tokenizer."""
        return True


def require_tables(
    scorer: str,
    references: Sequence[Any],
    fields: Sequence[str] | Callable[[int, Mapping[str, str]], Sequence[str]],
    advice: str,
) -> list[Mapping[str, str]]:
    """Return the references; raise RunError unless each is a table with texts for `fields`.

    `fields`: keys, or a function of a sample's number and reference; `advice`: a fitting data set.
    """
    tables = list(references)
    for sample, reference in enumerate(tables):
        defect = f"is a {type(reference).__name__}; it must be a table of texts"
        if isinstance(reference, Mapping):
            names = fields(sample, reference) if callable(fields) else fields
            missing = [repr(name) for name in names if not isinstance(reference.get(name), str)]
            if not missing:
                continue
            defect = f"has no text {' and no text '.join(missing)}"
        raise scorer_error(
            f"scorer {scorer}: the reference of sample {sample} {defect}; use data set {advice}"
        )
    return tables


def tokens_per_sample(decoded: Decoded) -> tuple[list[float], float]:
    """Return the number of tokens of each output, and their mean, rounded to 1 digit."""
    return list(map(float, decoded.tokens)), round(sum(decoded.tokens) / len(decoded.tokens), 1)


def scores_and_lengths(
    decoded: Decoded, rows: Mapping[str, Sequence[float | None]], means: Mapping[str, float]
) -> Scores:
    """Return scores of samples (`rows`) and `means`, by metric, with "tokens_per_sample" added."""
    tokens, mean_tokens = tokens_per_sample(decoded)
    return Scores(
        per_sample={**rows, "tokens_per_sample": tokens},
        aggregate={**means, "tokens_per_sample": mean_tokens},
    )


Row = list[float | None]
Part = tuple[dict[str, Row], dict[str, float]]
"""Scores per sample, and scores over all samples, of a part of the data set."""


def right_or_wrong_scores(
    metric: str, samples: Sequence[int], right: Sequence[bool], total: int
) -> Part:
    """Return ({metric: score of each sample}, {metric: mean score}); empty dicts without samples.

    A score is 100 if right, 0 if wrong, None for those of the `total` samples not in `samples`.
    """
    if not samples:
        return {}, {}
    row = scores_by_sample(samples, [100.0 * is_right for is_right in right], total)
    return {metric: row}, {metric: 100.0 * sum(right) / len(right)}


def scores_by_sample(samples: Sequence[int], values: Sequence[float], total: int) -> Row:
    """Return `total` scores: `values` at the positions `samples`, None elsewhere."""
    row: Row = [None] * total
    for sample, value in zip(samples, values, strict=True):
        row[sample] = value
    return row


def token_ids(scorer: str, dtype: str, outputs: Sequence[bytes]) -> list[NDArray[np.int64]]:
    """Return the token ids in each output; raise an error if an output has a wrong length."""
    kind = np.dtype(TOKEN_DTYPES[dtype])
    for sample, output in enumerate(outputs):
        if len(output) % kind.itemsize:
            raise scorer_error(
                f"scorer {scorer}: the output of sample {sample} has {len(output)} bytes, "
                f"which is not a whole number of {dtype} token ids ({kind.itemsize} bytes "
                "each); set the scorer's dtype to the type of the engine's outputs",
            )
    return [np.frombuffer(output, kind).astype(np.int64) for output in outputs]


class Decoder:
    """Decode token ids, the outputs of a language model, to text."""

    def __init__(
        self, scorer: str, model: str | None, options: DecoderOptions, *, special: bool = False
    ) -> None:
        """Check the options, and that the tokenizer exists in their folder, else in the model's.

        Args:
            scorer: Name of the scorer, for messages.
            model: Folder of the model in Hugging Face's files.
            special: Whether texts keep special tokens.
        """
        dtype, clean_up = options.dtype, options.clean_up
        require_choice(scorer, "dtype", dtype, TOKEN_DTYPES)
        if clean_up is not None:
            require_flag(scorer, "clean_up", clean_up)
        folder_name = options.tokenizer or model
        if folder_name is None:
            raise SuiteError(
                f"scorer {scorer} decodes tokens, but neither its option tokenizer nor the "
                "workload's model is set; set one of them to the folder that holds the tokenizer",
                option="tokenizer",
            )
        folder = Path(folder_name)
        if not any((folder / file).is_file() for file in TOKENIZER_FILES):
            defect = "holds no tokenizer" if folder.is_dir() else "does not exist"
            raise UnavailableError(
                f"scorer {scorer}: the folder {folder} {defect} (looked for "
                f"{', '.join(TOKENIZER_FILES)}); set the scorer's tokenizer to the folder with "
                "the model's Hugging Face files",
                path=folder,
            )
        self._scorer, self._folder, self._options, self._special = scorer, folder, options, special

    def require(self) -> None:
        """Check that the tokenizer's library is installed; import nothing."""
        name = library_for(self._folder)
        if importlib.util.find_spec(name) is None:
            raise self._lacks(name)

    def decode(self, outputs: Sequence[bytes]) -> Decoded:
        """Decode the token ids of each sample; an output without token ids becomes ""."""
        ids = token_ids(self._scorer, self._options.dtype, outputs)
        decode, valid_ids = self._load()
        self._require_known(ids, valid_ids)
        texts: list[str] = []
        for start in range(0, len(ids), BATCH_SAMPLES):
            texts += decode([row.tolist() for row in ids[start : start + BATCH_SAMPLES]])
        return Decoded(texts=texts, tokens=[len(row) for row in ids])

    def _load(self) -> Tokenizer:
        try:
            return load_tokenizer(self._folder, self._options.clean_up, special=self._special)
        except ImportError as error:
            raise self._lacks(error.name) from error
        except Exception as error:  # `tokenizers` raises bare Exceptions
            defect = f"the tokenizer in {self._folder} cannot be read ({error})"
            intact = f"scorer {self._scorer}: {defect}; download its files again"
            raise scorer_error(lfs_pointer(self._folder) or intact) from error

    def _lacks(self, library: str | None) -> EnvironmentFault:
        return EnvironmentFault(
            f"scorer {self._scorer} needs the library {library}, which is not installed, for the "
            f"tokenizer in {self._folder}; try: pip install "
            f"{INSTALL_NAMES.get(library or '', library)}"
        )

    def _require_known(self, ids: Sequence[NDArray[np.int64]], valid_ids: Collection[int]) -> None:
        tokens, valid = np.concatenate(ids), np.fromiter(valid_ids, np.int64)
        wrong = np.flatnonzero(~np.isin(tokens, valid))
        if len(wrong):
            ends = np.cumsum([len(row) for row in ids])
            raise scorer_error(
                f"scorer {self._scorer}: token {tokens[wrong[0]]} of sample "
                f"{np.searchsorted(ends, wrong[0], side='right')} is not in the vocabulary of "
                f"{self._folder}, which has {len(valid)} tokens up to {valid.max()}; set the "
                "scorer's tokenizer to the model's own, and its dtype to the type of the engine's "
                "outputs",
            )


D = TypeVar("D", bound=DecoderOptions)


class TextScorer(ScorerBase[D]):
    """Provide a base class for scorers of text that is decoded from token ids.

    Attributes:
        name: Name of the scorer in messages.
        special: Whether decoded texts retain special tokens.
    """

    optional_libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    name: ClassVar[str]
    special: ClassVar[bool] = False

    def __init__(self, *, model: str | None = None, **options: Any) -> None:
        """Check and store the options, which the class attribute `options` defines.

        Args:
            model: Folder with the model's Hugging Face files, for its tokenizer.
        """
        super().__init__(**options)
        processes = getattr(self._asked, "processes", None)
        valid = processes is None or (type(processes) is int and processes >= 1)
        rule = ("processes", processes, valid, "a whole number of at least 1")
        require_options(f"scorer {self.name}", [rule])
        if self._asked.decodes:
            self._decoder = Decoder(self.name, model, self._asked, special=self.special)

    def require(self) -> None:
        """Check that the decoder's library is installed; import nothing."""
        if self._asked.decodes:
            self._decoder.require()


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
CONFIG_FILE, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"

LIGHT, FULL = "tokenizers", "transformers"
"""Libraries that can load a tokenizer: the small one, and the one that loads all kinds."""

INSTALL_NAMES = {LIGHT: "'pytest-mlperf[scoring]'"}
"""Argument of pip install for a library, if it is not the library's name."""

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
"""Replacements of transformers' `clean_up_tokenization_spaces`, in this order."""

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
"""Decoder of transformers' LlamaTokenizer, in the form of tokenizer.json."""

SPECIAL_BY_DEFAULT = {
    "LlamaTokenizer": {"<unk>", "<s>", "</s>"},
    "GPT2Tokenizer": {"<|endoftext|>"},
}
"""Tokens that are always special for a class of transformers."""


Tokenizer = tuple[Callable[[list[list[int]]], list[str]], Collection[int]]
"""Function that returns the text of each list of ids, and all valid ids."""


def load_tokenizer(folder: Path, clean_up: bool | None, *, special: bool = False) -> Tokenizer:
    """Load a tokenizer from a folder with Hugging Face files.

    `clean_up` is the option of `DecoderOptions`; `special` retains special tokens. Raises
    ImportError if the library is not installed, and the library's own errors for damaged files.
    """
    if library_for(folder) == LIGHT:
        settings, content = map(_read, (folder / CONFIG_FILE, folder / TOKENIZER_FILE))
        cleans = _cleans(settings, content) if clean_up is None else clean_up
        return _load_light(folder, cleans, not special)
    return _load_full(folder, clean_up, not special)


def library_for(folder: Path) -> str:
    """Return the library that can load a folder's tokenizer: "tokenizers", else "transformers"."""
    if (folder / "tekken.json").exists():
        return FULL
    try:
        settings, content = map(_read, (folder / CONFIG_FILE, folder / TOKENIZER_FILE))
        return LIGHT if tokenizer_json_suffices(settings, content, _named(folder)) else FULL
    except Exception:  # the next reader of broken files reports them
        return LIGHT


def clean(text: str) -> str:
    """Remove spaces before punctuation and in English contractions, as transformers does."""
    for spaced, close in CLEAN_UP:
        text = text.replace(spaced, close)
    return text


def tokenizer_json_suffices(
    settings: Mapping[str, Any], content: Mapping[str, Any], special_names: set[str]
) -> bool:
    """Return whether tokenizer.json alone decodes in the same way as transformers' AutoTokenizer.

    transformers must use the decoder in that file or an equal one, and the file must have all
    special tokens that other files name (`special_names`). `settings` is the content of
    tokenizer_config.json, `content` that of tokenizer.json; both are empty if the file is missing.
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
    return decodes and agreed and special_names | SPECIAL_BY_DEFAULT.get(kind, set()) <= special


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return content


def _named(folder: Path) -> set[str]:
    tokens: set[str] = set()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in _read(folder / name).items():
            if key.endswith(("_token", "_special_tokens")):
                tokens |= _texts(value)
    return tokens | _read(folder / "added_tokens.json").keys()


def _texts(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        return {value["content"]} if "content" in value else _texts(list(value.values()))
    return {text for item in value for text in _texts(item)} if isinstance(value, list) else set()


def _cleans(settings: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    is_bpe = content["model"].get("type", "BPE") == "BPE"
    return bool(settings.get(CLEAN_UP_SWITCH) and (settings.get(CLEAN_UP_FORCED) or not is_bpe))


def _load_light(folder: Path, clean_up: bool, skips: bool) -> Tokenizer:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def decode(ids: list[list[int]]) -> list[str]:
        texts: list[str] = tokenizer.decode_batch(ids, skip_special_tokens=skips)
        return [clean(text) for text in texts] if clean_up else texts

    return decode, tokenizer.get_vocab().values()


def _load_full(folder: Path, clean_up: bool | None, skips: bool) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    cleans = None if clean_up is None else False

    def decode(ids: list[list[int]]) -> list[str]:
        texts = tokenizer.batch_decode(
            ids, skip_special_tokens=skips, clean_up_tokenization_spaces=cleans
        )
        return [clean(text) for text in texts] if clean_up else list(texts)

    return decode, tokenizer.get_vocab().values()
