"""Prompts from a file of one's own, or made up by lengths."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.files import json_lines
from pytest_mlperf.adapters.datasets.user_prompts import UserPromptsDataset
from pytest_mlperf.adapters.datasets.user_prompts._synthetic import Lengths
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_dataset
from tests.adapters.datasets.refusals import not_refused

MODEL = Path(__file__).parents[3] / "suites" / "tiny" / "llama2-70b" / "model"
RECORDS: Sequence[dict[str, Any]] = [
    {"question": "What is\n a \x1b[31m?", "gold": 'it, "so"', "tokens": 7, "beside": None},
    {"question": "Warum — ü😀?", "gold": "", "tokens": 2, "beside": [1]},
]

COLUMNS = {"prompt": "question", "reference": "gold", "output_tokens": "tokens"}


def as_jsonl(path: Path, records: Sequence[dict[str, Any]] = RECORDS) -> Path:
    path.write_text("\n\n".join(map(json.dumps, records)), "utf-8-sig")
    return path


def as_csv(path: Path) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(RECORDS[0]))
        writer.writeheader()
        writer.writerows(RECORDS)
    return path


def as_parquet(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{name: row[name] for name in COLUMNS.values()} for row in RECORDS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


KINDS: dict[str, Callable[[Path], Path]] = {
    "a.jsonl": as_jsonl,
    "a.csv": as_csv,
    "a.parquet": as_parquet,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_same_records_are_the_same_samples_in_any_file_format(
    tmp_path: Path, name: str
) -> None:
    dataset = UserPromptsDataset(path=str(KINDS[name](tmp_path / name)), columns=COLUMNS)
    plain = UserPromptsDataset(path=str(as_jsonl(tmp_path / "other.jsonl")), columns=COLUMNS)

    assert [dataset.input(index) for index in range(2)] == [row["question"] for row in RECORDS]
    assert [dataset.reference(index) for index in range(2)] == [row["gold"] for row in RECORDS]
    assert [dataset.output_tokens(index) for index in range(2)] == [7, 2]
    assert dataset.digest == plain.digest
    assert dataset.sizes(range(2)) == {}


def test_every_part_of_a_sample_counts_in_the_digest(tmp_path: Path) -> None:
    path = str(as_jsonl(tmp_path / "a.jsonl"))
    kinds = [{"prompt": "question"}, {"prompt": "gold", "reference": "question"}, COLUMNS]
    kinds.append({"prompt": "question", "reference": "gold"})
    as_jsonl(tmp_path / "a.jsonl", [{**row, "gold": "x"} for row in RECORDS])

    assert len({UserPromptsDataset(path=path, columns=each).digest for each in kinds}) == 4


def test_prompts_may_be_token_ids_and_lie_in_shards(tmp_path: Path) -> None:
    path = as_jsonl(tmp_path / "a.jsonl", [{"prompt": [1, 2, 3]}, {"prompt": [2**31 - 1]}])
    dataset = UserPromptsDataset(path=str(path))
    assert [dataset.input(index) for index in range(2)] == [[1, 2, 3], [2**31 - 1]]
    assert dataset.sizes(range(2)) == {"input_tokens": 2}
    assert dataset.output_tokens(0) is None
    for number in (2, 0, 1):
        as_jsonl(tmp_path / f"train-{number}.jsonl", [{"prompt": f"{number}"}] * 2)
    as_jsonl(tmp_path / "test-0.jsonl", [{"prompt": "other"}])
    dataset = UserPromptsDataset(path=str(tmp_path / "train-*.jsonl"), count=5)
    assert [dataset.input(index) for index in range(len(dataset))] == ["0", "0", "1", "1", "2"]


NEAREST = "has no column 'prompt', the nearest is 'promt'; it needs 'prompt', and has 'promt'"
NO_LINES = "the file has no lines; get it from its source again"
BAD_JSONL: list[tuple[str, str]] = [
    ('{"prompt": "x"}\n\n{"promt": "x"}\n', f"line 3: the object {NEAREST}. Set the data set's"),
    (
        '{"prompt": "x"}\n{"prompt": \n',
        "line 2: it is not JSON: Expecting value; correct the file,",
    ),
    ("[" * 200_000, "line 1: it is not JSON: "),
    ('[{"prompt": "x"}]\n', "line 1: it is of type list, not a JSON object"),
    ('{"prompt": 3}', "line 1, column 'prompt': a value of type int is neither text nor a list of"),
    (
        '{"prompt": [1, "x"]}',
        "line 1, column 'prompt': a list of int and str is not a list of whole",
    ),
    ('{"prompt": [2147483648]}', "a token is negative or above 2**31"),
    ('{"prompt": [true]}', "a list of bool is not a list of whole numbers"),
    ('{"prompt": ""}', "line 1, column 'prompt': the prompt is empty"),
    ('{"prompt": []}', "line 1, column 'prompt': the prompt is empty"),
    ('{"prompt": "x"}\n{"prompt": [1]}', "line 2, column 'prompt': all prompts must be text, or"),
    ("", NO_LINES),
    ('{"prompt": "x"}\n\udcff\n', "line 2: it is not UTF-8 (invalid start"),
]
BAD_CSV: list[tuple[str, str]] = [
    ("promt,b\nx,y\n", "the table has no column 'prompt', the nearest is 'promt'; it needs"),
    ("prompt,prompt\nx,y\n", "more than one column 'prompt'"),
    ("", NO_LINES),
    ("prompt\n", NO_LINES),
    ("prompt,b\nx\n", "line 2: it has 1 cells, but the header has 2"),
    ('prompt\n"x\n', "line 2: it is not CSV: unexpected end of data"),
]


def test_a_bad_file_is_one_sentence_with_its_place(tmp_path: Path) -> None:
    """A length is a whole number."""

    def read(name: str, text: str) -> None:
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        UserPromptsDataset(path=str(tmp_path / name))

    rows = [("a.jsonl", *row) for row in BAD_JSONL] + [("a.csv", *row) for row in BAD_CSV]
    assert not_refused(RunError, rows, read) == []
    as_jsonl(tmp_path / "a.jsonl", [{"\x1b[2J" * 5000: "x"}])
    with pytest.raises(RunError, match=r"^[^\x1b]{1,1499}$"):
        UserPromptsDataset(path=str(tmp_path / "a.jsonl"))
    lengths = ("x", "0", "1.5", "-3", "1" * 5000, "", "²", "4194305")

    def read_length(length: str) -> None:
        (tmp_path / "a.csv").write_text(f"prompt,n\nx,{length}\n", "utf-8")
        UserPromptsDataset(path=str(tmp_path / "a.csv"), columns={"output_tokens": "n"})

    pattern = r"^(?=.{1,299}$).*line 2, column 'n': .* is not a number of to"
    assert not_refused(RunError, [(length, pattern) for length in lengths], read_length) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_line_or_a_file_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    begin = b"prompt\n" if name == "a.csv" else b'{"prompt": "x"}\n'
    (tmp_path / name).write_bytes(begin + b"x" * (2**24 + 1))
    for limit, other, message in (
        ("MAX_LINE_BYTES", "FILE_LIMIT", "line 2: it has more than 16 MiB"),
        ("FILE_LIMIT", "MAX_LINE_BYTES", "line 2: the file up to this line has more than 16 MiB"),
    ):
        monkeypatch.setattr(json_lines, limit, 2**24)
        monkeypatch.setattr(json_lines, other, 2**30)
        with pytest.raises(RunError, match=message):
            UserPromptsDataset(path=str(tmp_path / name))


NO_LENGTHS: Sequence[Any] = [
    *("1k", True, 10**9, {}, {"fixed": 1.5}, {"low": 3, "high": 2}),
    *({"mean": 10, "sd": 0}, {"mean": float("nan")}),
]
BAD_OPTIONS: Sequence[tuple[dict[str, Any], str, str]] = [
    ({"input_tokens": 0}, "input_tokens", "from 1 to 4194304 tokens: write a mean, e.g. 1024"),
    *(
        ({"input_tokens": value}, "input_tokens", "is not a distribution of lengths")
        for value in NO_LENGTHS
    ),
    ({"output_tokens": 1}, "output_tokens", "from 2 to"),
    ({"shared": {"prefixes": 1}}, "shared", "shared = .* must have the form { prefixes = 8"),
    ({"shared": {"prefixes": 1, "tokens": 5, "share": 2}}, "shared", "at most 1"),
    ({"samples": 0}, "samples", "is not a number of prompts, at least 1"),
    ({"seed": "x"}, "seed", "is not a whole number"),
    (
        {"columns": {"prompt": "x"}},
        "columns",
        "columns applies to a file; set path, or remove it",
    ),
    ({"path": "x.jsonl", "seed": 3}, "seed", "seed applies to generated prompts; remove it"),
    ({"path": "x.jsonl", "columns": {"promt": "x"}}, "columns", "did you mean 'prompt'?"),
    ({"path": "x.jsonl", "columns": {"prompt": 3}}, "columns", "is not a name of a column"),
]


def test_options_that_mean_nothing_are_refused() -> None:
    for options, option, part in BAD_OPTIONS:
        with pytest.raises(SuiteError, match=part) as caught:
            UserPromptsDataset.look(**options)
        assert option in caught.value.options


def test_a_missing_file_or_one_of_unknown_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_text("x")
    for option, name, kind, message in (
        ("path", "a.jsonl", UnavailableError, "this file of prompts does not exist"),
        ("tokenizer", "none", UnavailableError, "set the data set's option tokenizer"),
        (
            "path",
            "a.xlsx",
            SuiteError,
            r"a\.xlsx has an unknown ending; .* one of \.jsonl, \.csv, \.parquet",
        ),
    ):
        with pytest.raises(kind, match=message):
            UserPromptsDataset.look(**{option: str(tmp_path / name)})


DISTRIBUTIONS = st.one_of(
    st.integers(2, 5000),
    st.builds(
        lambda low, more: {"low": low, "high": low + more}, st.integers(2, 99), st.integers(0, 99)
    ),
    st.builds(lambda count: {"fixed": count}, st.integers(2, 99)),
    st.builds(lambda mean, sd: {"mean": mean, "sd": sd}, st.floats(2, 999), st.floats(0.01, 5000)),
)


@given(value=DISTRIBUTIONS, chances=st.lists(st.floats(0, 1, exclude_max=True), min_size=1))
def test_lengths_keep_to_their_bounds_and_grow_with_chance(
    value: Any, chances: list[float]
) -> None:
    lengths = Lengths.parse("input_tokens", value, least=2)
    drawn = [lengths.draw(chance) for chance in sorted(chances)]

    assert all(2 <= lengths.low <= length <= lengths.high for length in drawn)
    assert drawn == sorted(drawn)


def test_a_bare_number_is_a_mean_around_which_lengths_are_drawn() -> None:
    """Requests of one length would stay in step in a closed loop."""
    dataset = UserPromptsDataset(samples=2000, input_tokens=100, output_tokens=100)
    prompts = [len(str(dataset.input(index)).split()) for index in range(2000)]
    answers = [dataset.output_tokens(index) or 0 for index in range(2000)]

    for lengths in (prompts, answers):
        assert fmean(lengths) == pytest.approx(100, abs=2)
        assert stdev(lengths) == pytest.approx(20, abs=2)
        assert 40 <= min(lengths) <= max(lengths) <= 160
    assert prompts != answers


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_no_two_prompts_begin_alike(seed: int) -> None:
    """Not even by one block of a prefix cache, of 16 tokens."""
    dataset = UserPromptsDataset(samples=200, input_tokens={"fixed": 32}, seed=seed)
    begins = {tuple(str(dataset.input(index)).split()[:8]) for index in range(200)}

    assert len(begins) == 200


def test_the_shared_share_of_prompts_equals_the_hits_of_a_prefix_cache() -> None:
    """Three beginnings of half the prompts: all but the first prompt of each is in a cache."""
    for tokens in (20, 60):
        shared = {"prefixes": 3, "tokens": tokens, "share": 0.5}
        dataset = UserPromptsDataset(samples=300, input_tokens=64, shared=shared)
        prompts = [str(dataset.input(index)).split() for index in range(300)]
        counts = Counter(tuple(words[:tokens]) for words in prompts)
        common = [count for count in counts.values() if count > 1]
        assert len(common) == 3
        assert sum(common) == pytest.approx(150, abs=30)
        share = tokens * (sum(common) - 3) / sum(map(len, prompts))
        assert dataset.sizes(range(300)) == {"prefix_share": pytest.approx(share)}
    assert UserPromptsDataset(samples=300).sizes(range(300)) == {"prefix_share": 0}


def test_the_same_options_are_the_same_prompts_and_any_other_are_not() -> None:
    """On every machine."""
    kinds: list[dict[str, Any]] = [
        {},
        {"samples": 7},
        {"seed": 1},
        {"input_tokens": 1023},
        {"output_tokens": 9},
        {"shared": {"prefixes": 1, "tokens": 5, "share": 1}},
    ]
    assert len({UserPromptsDataset(**each).digest for each in kinds}) == len(kinds)
    assert UserPromptsDataset(seed=4).input(5) == UserPromptsDataset(seed=4).input(5)
    assert UserPromptsDataset(seed=4).input(5) != UserPromptsDataset(seed=5).input(5)
    dataset = UserPromptsDataset(samples=2, input_tokens={"fixed": 5}, output_tokens=64)
    assert dataset.input(1) == "last those year will not"
    assert [dataset.output_tokens(index) for index in range(2)] == [66, 76]


class WordTokenizer:
    """Take a mark at the beginning, and of long words their halves."""

    def __call__(self, text: str) -> dict[str, list[str]]:
        words = [[word[:6], word[6:]] if len(word) > 6 else [word] for word in text.split()]
        return {"input_ids": ["<s>", *(piece for pieces in words for piece in pieces)]}

    def from_pretrained(self, *_: Any, **__: Any) -> WordTokenizer:
        return self


@pytest.fixture(params=["words", pytest.param("llama", marks=pytest.mark.nightly)])
def tokenizer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what `transformers` reads from the folder MODEL."""
    if request.param == "words":
        fake = SimpleNamespace(AutoTokenizer=WordTokenizer())
        monkeypatch.setitem(sys.modules, "transformers", fake)
        return fake.AutoTokenizer
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(MODEL)


def test_with_a_tokenizer_lengths_are_exact(tokenizer: Any) -> None:
    shared = {"prefixes": 2, "tokens": 9, "share": 0.5}
    dataset = UserPromptsDataset(
        samples=20, input_tokens={"fixed": 33}, shared=shared, tokenizer=str(MODEL)
    )

    assert [len(tokenizer(dataset.input(index))["input_ids"]) for index in range(20)] == [33] * 20
    sizes = dataset.sizes(range(20))
    assert sizes == {"input_tokens": 33, "prefix_share": pytest.approx(0.1, abs=0.09)}


def test_an_answer_without_a_reference_is_refused() -> None:
    with pytest.raises(RunError, match="or leave out the scorer"):
        UserPromptsDataset().reference(0)


TRACE: Sequence[dict[str, Any]] = [
    {"timestamp": 0, "input_length": 1100, "output_length": 9, "hash_ids": [7, 8, 9]},
    {"timestamp": 27.5, "input_length": 1500, "output_length": 1, "hash_ids": [7, 8, 3]},
    {"timestamp": 3000, "input_length": 40, "output_length": 5, "hash_ids": [5]},
    {"timestamp": 3000, "input_length": 40, "output_length": 5, "hash_ids": []},
]


def test_prompts_of_a_trace_share_the_blocks_whose_ids_are_equal(tmp_path: Path) -> None:
    path = str(as_jsonl(tmp_path / "trace.jsonl", TRACE))
    dataset = UserPromptsDataset(path=path, trace=True)
    words = [str(dataset.input(index)).split() for index in range(4)]

    assert [len(each) for each in words] == [1100, 1500, 40, 40]
    assert words[0][:1024] == words[1][:1024]
    assert words[0][1024:] != words[1][1024:1100]
    assert words[2] != words[3]
    assert dataset.sizes(range(4)) == {"prefix_share": pytest.approx(1024 / 2680)}
    assert [dataset.arrival_s(index) for index in range(4)] == [0, 0.0275, 3, 3]
    assert [dataset.output_tokens(index) for index in range(4)] == [9, 2, 5, 5]
    options: list[dict[str, Any]] = [{}, {"seed": 1}, {"count": 3}]
    digests = {UserPromptsDataset(path=path, trace=True, **option).digest for option in options}
    assert len(digests) == 3


def test_with_a_tokenizer_a_trace_has_its_lengths(tmp_path: Path, tokenizer: Any) -> None:
    path = str(as_jsonl(tmp_path / "trace.jsonl", TRACE))
    dataset = UserPromptsDataset(path=path, trace=True, tokenizer=str(MODEL))
    ids = [tokenizer(dataset.input(index))["input_ids"] for index in range(4)]

    assert [len(tokens) for tokens in ids] == [1100, 1500, 40, 40]
    assert ids[0][:1024] == ids[1][:1024]


def test_an_invalid_line_of_a_trace_is_named(tmp_path: Path) -> None:
    rows: list[Any] = [
        ("timestamp", -1, "-1 is not a time in milliseconds"),
        ("timestamp", "0", "'0' is not a time in milliseconds"),
        ("timestamp", float("nan"), "nan is not a time in milliseconds"),
        ("timestamp", True, "True is not a time in milliseconds"),
        ("timestamp", 1, "1 is earlier than 27.5, the timestamp of the"),
        ("input_length", 0, "0 is not a number of tokens from 1"),
        ("output_length", 2.5, "2.5 is not a number of tokens"),
        ("hash_ids", [1.5], "[1.5] is not a list of whole numbers"),
        ("hash_ids", None, "None is not a list of whole numbers"),
    ]

    def read(column: str, value: Any) -> None:
        lines = [TRACE[0], TRACE[1], {**TRACE[2], column: value}]
        path = as_jsonl(tmp_path / "trace.jsonl", lines)
        UserPromptsDataset(path=str(path), trace=True)

    named = [(column, value, f"line 5, column '{column}': {part}") for column, value, part in rows]
    assert not_refused(RunError, named, read) == []


def test_a_trace_is_a_file_of_its_own_kind(tmp_path: Path) -> None:
    path = str(as_jsonl(tmp_path / "trace.jsonl", TRACE))
    table = str(as_csv(tmp_path / "a.csv"))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"trace": True}, "trace applies to a file"),
        (
            {"path": path, "trace": True, "columns": {"prompt": "x"}},
            "columns applies to a file of pro",
        ),
        ({"path": path, "trace": True, "samples": 7}, "samples applies to generated"),
        ({"path": path, "seed": 7}, "seed applies to generated prompts"),
        ({"path": path, "trace": "yes"}, "trace = 'yes'"),
        ({"path": table, "trace": True}, "trace = true needs one .jsonl file, but path = "),
    ]
    for options, words in wrong:
        with pytest.raises(SuiteError, match=words):
            UserPromptsDataset(**options)
    with pytest.raises(RunError, match="its requests have no arrival times"):
        UserPromptsDataset().arrival_s(0)


@pytest.mark.process
def test_the_data_set_keeps_the_contract(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "a.jsonl")
    options = {"path": str(tmp_path / "a.jsonl"), "columns": COLUMNS}
    check_dataset(UserPromptsDataset, options=options)
