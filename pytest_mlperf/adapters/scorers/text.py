"""From a language model's token ids to text and to an answer, as in MLPerf's reference scripts."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from pytest_mlperf import EnvironmentFault, Scores, SuiteError, UnavailableError
from pytest_mlperf.adapters.scorers import require_choice, scorer_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


NEXT_QUESTION = "\nQ:"
"""What follows is no longer the answer: the model goes on with a question of its own."""

DELIMITER = "The answer is"

NUMBER = re.compile(r"-?[\d,]*\.?\d+")
"""A number, perhaps with a sign, commas between its digits, and a point."""


def answer(text: str) -> str:
    """Return the number after the first "The answer is", else the last number, without commas.

    Returns "" without a number. Source: language/mixtral-8x7b/evaluate-accuracy.py of
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
    """Return whether a text's answer equals a target as float64; "1,000" is never met."""
    try:
        return float(answer(text)) == float(target)
    except ValueError:
        return False


TOKEN_DTYPES = {"int32": "<i4", "int64": "<i8"}
BATCH_SAMPLES = 1024
"""Samples that are decoded together: while they are, their ids are Python numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """What a model wrote.

    Attributes:
        texts: The text of each sample, special tokens left out unless the decoder keeps them.
        tokens: How many tokens each output has, special ones counted.
    """

    texts: list[str]
    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """How outputs are read; what all scorers of texts can be told.

    Attributes:
        tokenizer: Folder of the tokenizer, where that is not the model's.
        dtype: Type of the token ids in an output, little-endian: "int32" or "int64".
        clean_up: Whether spaces before punctuation are removed from decoded text; it can change
            programs, and no number. None does as transformers 5 does: where tokenizer_config.json
            sets clean_up_tokenization_spaces, but never for BPE. The references of MLPerf ran
            transformers 4, which did it for BPE too: true gives their text for Llama 3.1, and
            differs in " n't" only.
    """

    tokenizer: str | None = None
    dtype: str = "int64"
    clean_up: bool | None = None

    @property
    def decodes(self) -> bool:
        """Whether outputs are token ids, for which a tokenizer is needed."""
        return True


def check_processes(scorer: str, processes: object) -> None:
    """Refuse an option `processes` that is neither None nor a number from 1 on."""
    if processes is not None and (type(processes) is not int or processes < 1):
        raise SuiteError(
            f"scorer {scorer}: processes = {processes!r} must be a number from 1 on",
            option="processes",
        )


def text_defect(reference: object, fields: Sequence[str]) -> str | None:
    """Return the defect of a reference that must be a table of texts, or None."""
    if not isinstance(reference, Mapping):
        return f"is a {type(reference).__name__}, but must be a table of texts"
    missing = [name for name in fields if not isinstance(reference.get(name), str)]
    return f"has no text {' and no text '.join(map(repr, missing))}" if missing else None


def require_tables(
    scorer: str, references: Sequence[Any], fields: Sequence[str], advice: str
) -> list[Mapping[str, str]]:
    """Return references, each read once, if they are tables with the texts `fields`.

    Messages name the `scorer` and, as `advice`, the data set that has them.
    """
    tables = list(references)
    for sample, reference in enumerate(tables):
        if defect := text_defect(reference, fields):
            raise scorer_error(
                f"scorer {scorer}: the reference of sample {sample} {defect}; use data set "
                f"{advice}",
            )
    return tables


def tokens_per_sample(decoded: Decoded) -> tuple[list[float], float]:
    """Return the tokens of each output, and their mean to 1 digit, as the references print it."""
    return list(map(float, decoded.tokens)), round(sum(decoded.tokens) / len(decoded.tokens), 1)


def scores_and_lengths(
    decoded: Decoded, rows: Mapping[str, Sequence[float | None]], means: Mapping[str, float]
) -> Scores:
    """Return scores with those of "tokens_per_sample" after them."""
    tokens, mean_tokens = tokens_per_sample(decoded)
    return Scores(
        per_sample={**rows, "tokens_per_sample": tokens},
        aggregate={**means, "tokens_per_sample": mean_tokens},
    )


def token_ids(scorer: str, dtype: str, outputs: Sequence[bytes]) -> list[NDArray[np.int64]]:
    """Return the token ids in each output."""
    import numpy as np

    kind = np.dtype(TOKEN_DTYPES[dtype])
    for sample, output in enumerate(outputs):
        if len(output) % kind.itemsize:
            raise scorer_error(
                f"scorer {scorer}: the output of sample {sample} has {len(output)} bytes, "
                f"which is no whole number of {dtype} token ids ({kind.itemsize} "
                "bytes each); set the scorer's dtype to the type of the engine's outputs",
            )
    return [np.frombuffer(output, kind).astype(np.int64) for output in outputs]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Decodes the outputs of a language model.

    Attributes:
        scorer: Name of the scorer, for messages.
        folder: Where the tokenizer is, in Hugging Face's files.
        options: How outputs are read.
        special: Whether texts keep special tokens.
    """

    scorer: str
    folder: Path
    options: DecoderOptions
    special: bool = False

    @classmethod
    def of(
        cls, scorer: str, model: str | None, options: DecoderOptions, *, special: bool = False
    ) -> Self:
        """Check the options, and that the tokenizer is here: in their folder, else the model's."""
        dtype, clean_up = options.dtype, options.clean_up
        require_choice(scorer, "dtype", dtype, TOKEN_DTYPES)
        if clean_up not in {None, False, True}:
            raise SuiteError(
                f"scorer {scorer}: clean_up = {clean_up!r} is neither true nor false",
                option="clean_up",
            )
        named = options.tokenizer or model
        if named is None:
            raise SuiteError(
                f"scorer {scorer} decodes tokens, but neither its option tokenizer nor the "
                "workload's model is set; set one of them to the folder that holds the tokenizer",
                option="tokenizer",
            )
        folder = Path(named)
        if not any((folder / file).is_file() for file in TOKENIZER_FILES):
            defect = "holds no tokenizer" if folder.is_dir() else "is not here"
            raise UnavailableError(
                f"scorer {scorer}: the folder {folder} {defect} (looked for "
                f"{', '.join(TOKENIZER_FILES)}); set the scorer's tokenizer to the folder with "
                "the model's Hugging Face files",
                path=folder,
            )
        return cls(scorer=scorer, folder=folder, options=options, special=special)

    def require(self) -> None:
        """Look for the library that reads the tokenizer; nothing is imported."""
        name = library_for(self.folder)
        if importlib.util.find_spec(name) is None:
            raise self._lacks(name)

    def decode(self, outputs: Sequence[bytes]) -> Decoded:
        """Decode the token ids of each sample; no ids are the empty text."""
        ids = token_ids(self.scorer, self.options.dtype, outputs)
        tokenizer = self._load()
        self._require_known(ids, tokenizer)
        texts: list[str] = []
        for start in range(0, len(ids), BATCH_SAMPLES):
            texts += tokenizer.decode([one.tolist() for one in ids[start : start + BATCH_SAMPLES]])
        return Decoded(texts=texts, tokens=[len(one) for one in ids])

    def _load(self) -> Tokenizer:
        try:
            return load_tokenizer(self.folder, self.options.clean_up, special=self.special)
        except ImportError as error:
            raise self._lacks(error.name) from error
        except Exception as error:  # `tokenizers` raises bare Exceptions
            raise scorer_error(
                f"scorer {self.scorer}: the tokenizer in {self.folder} cannot be read ({error}); "
                "replace its files by intact ones",
            ) from error

    def _lacks(self, library: str | None) -> EnvironmentFault:
        return EnvironmentFault(
            f"scorer {self.scorer} needs {library} to decode with the tokenizer in {self.folder}, "
            f"which is not installed; try: pip install {INSTALL_NAMES.get(library or '', library)}"
        )

    def _require_known(self, ids: Sequence[NDArray[np.int64]], tokenizer: Tokenizer) -> None:
        import numpy as np

        tokens, valid = np.concatenate(ids), np.fromiter(tokenizer.ids, np.int64)
        wrong = np.flatnonzero(~np.isin(tokens, valid))
        if len(wrong):
            ends = np.cumsum([len(one) for one in ids])
            raise scorer_error(
                f"scorer {self.scorer}: token {tokens[wrong[0]]} of sample "
                f"{np.searchsorted(ends, wrong[0], side='right')} is not in the vocabulary of "
                f"{self.folder}, which has {len(valid)} tokens up to {valid.max()}; set the "
                "scorer's tokenizer to the model's own, and its dtype to the type of the engine's "
                "outputs",
            )


D = TypeVar("D", bound=DecoderOptions)


class TextScorer(Generic[D]):
    """A scorer of texts, which are decoded from tokens; its options are those of a `Decoder`.

    Attributes:
        name: Its name in messages.
        special: Whether texts keep special tokens.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    optional_libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    options: ClassVar[type] = DecoderOptions
    name: ClassVar[str]
    special: ClassVar[bool] = False

    def __init__(self, *, model: str | None = None, **options: Any) -> None:
        """Choose how outputs are read.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            options: Those of the class attribute `options`.
        """
        self._asked: D = self.options(**options)
        if self._asked.decodes:
            self._decoder = Decoder.of(self.name, model, self._asked, special=self.special)

    def require(self) -> None:
        """Look for what decodes; nothing is imported."""
        if self._asked.decodes:
            self._decoder.require()


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
CONFIG_FILE, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"

LIGHT, FULL = "tokenizers", "transformers"
"""The libraries that read them."""

INSTALL_NAMES = {LIGHT: "'pytest-mlperf[scoring]'"}
"""What brings a library, where that is not its own name."""

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
        decode: Gives the text of each list of ids.
        ids: Every id that stands for a token.
    """

    decode: Callable[[list[list[int]]], list[str]]
    ids: Collection[int]


def load_tokenizer(folder: Path, clean_up: bool | None, *, special: bool = False) -> Tokenizer:
    """Load the tokenizer in a folder of Hugging Face's files.

    `clean_up` applies `clean`; None does as transformers 5: if tokenizer_config.json asks for it,
    and the tokenizer is no BPE. `special` keeps special tokens in texts. Raises ImportError without
    the library, and the library's own errors for bad files.
    """
    if library_for(folder) == LIGHT:
        settings, content = map(_read, (folder / CONFIG_FILE, folder / TOKENIZER_FILE))
        cleans = _cleans(settings, content) if clean_up is None else clean_up
        return _load_light(folder, cleans, not special)
    return _load_full(folder, clean_up, not special)


def library_for(folder: Path) -> str:
    """Return the library for a tokenizer, "tokenizers" or "transformers"; either may refuse it."""
    if (folder / "tekken.json").exists():
        return FULL
    try:
        settings, content = map(_read, (folder / CONFIG_FILE, folder / TOKENIZER_FILE))
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

    That is so if transformers uses that file's decoder or an equal one, and `named`, the other
    files' special tokens, are all in it. `settings` is tokenizer_config.json, `content`
    tokenizer.json; both are empty without the file.
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
    return {text for one in value for text in _texts(one)} if isinstance(value, list) else set()


def _cleans(settings: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    is_bpe = content["model"].get("type", "BPE") == "BPE"
    return bool(settings.get(CLEAN_UP_SWITCH) and (settings.get(CLEAN_UP_FORCED) or not is_bpe))


def _load_light(folder: Path, clean_up: bool, skips: bool) -> Tokenizer:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def decode(ids: list[list[int]]) -> list[str]:
        texts: list[str] = tokenizer.decode_batch(ids, skip_special_tokens=skips)
        return [clean(text) for text in texts] if clean_up else texts

    return Tokenizer(decode=decode, ids=tokenizer.get_vocab().values())


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

    return Tokenizer(decode=decode, ids=tokenizer.get_vocab().values())
