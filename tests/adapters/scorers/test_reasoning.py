"""Answers of reasoning models, read and graded as MLPerf's scripts do, with their flaws."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.reasoning import _mathematics as mathematics
from pytest_mlperf.adapters.scorers.reasoning._answers import (
    boxed,
    choice,
    final_choice,
    final_section,
    number,
)
from pytest_mlperf.adapters.scorers.reasoning.scorer import DeepSeekScorer, GptOssScorer
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import NAMES, SPECIAL, byte_level, write


@pytest.fixture
def sympy() -> None:
    """Skip where the libraries of the extra [math] are not installed."""
    if find_spec("sympy") is None or find_spec("pylatexenc") is None:
        pytest.skip("needs pytest-mlperf[math]")


FINAL = "<|channel|>final<|message|>"


def test_the_letter_is_the_last_after_the_word_answer() -> None:
    letters = {
        ("ANSWER: B", "A-D"): "B",
        ("ANSWER: **B**", "A-D"): None,
        ("Answer: $B$", "A-D"): None,
        ("answer a good one", "A-D"): "A",
        ("ANSWER: A then ANSWER: (C).", "A-D"): "C",
        ("FINALANSWER=( d )", "A-D"): "D",
        ("ANSWER: E", "A-D"): None,
        ("ANSWER: E", "A-J"): "E",
        ("ANSWER: Because", "A-D"): None,
        ("['ANSWER:\\nB']", "A-D"): "B",
        ("I pick j", "A-J"): "J",
        ("I pick j", "A-D"): None,
        ("", "A-J"): None,
        ("ANSWER:", "A-D"): None,  # cut before the letter
    }

    assert {key: choice(*key) for key in letters} == letters


def test_gpt_oss_is_read_from_its_final_section_on() -> None:
    """The section ends at return or with the text."""
    letters = {
        f"<|channel|>analysis<|message|>ANSWER: A<|end|>{FINAL}**C**<|return|>": "C",
        f"{FINAL}A good choice is C.\n\nAnswer: C": "A",
        f"{FINAL}Because of Answer. B": "B",
        "I think so<|return|> ANSWER: A": "A",
        f"{FINAL}<|return|>": None,
        f"ANSWER: B{FINAL}<|return|>": "B",  # a draft, as the final section is empty
        f"<|channel|>final 明<|message|>(d){FINAL}A": "D",
        f"{FINAL}**Answer: B** or Answer: C": "B",
        "": None,
    }
    sections = {
        f"x{FINAL} a\nb <|return|>c": "a\nb",
        f"x{FINAL}cut": "cut",
        " no channel ": "no channel",
    }

    assert {text: final_choice(text, "A-D") for text in letters} == letters
    assert {text: final_section(text) for text in sections} == sections


def test_a_number_is_boxed_or_follows_the_word_answer_and_a_formula_is_boxed_last() -> None:
    numbers = {
        r"\boxed{073}": 73,
        r"\boxed{1000} Answer: 5": None,
        "Answer: 12.": None,
        "Answer: 12": 12,
        "answer:\n7, then Answer: 8": 8,
        r"\boxed{ 5 } Answer: 6": 5,
        r"\boxed{x} Answer: 6": 6,
        "Answer: -6": None,
        "Answer: 12a": None,
        r"\boxed{" + "9" * 10_000 + "}": None,
        "": None,
    }
    formulas = {
        r"\boxed{\frac{1}{2}} and \boxed{x^{2}}": "x^{2}",
        r"\boxed{ a } b": "a",
        r"\boxed{\frac{1}{2}": None,
        r"\boxed{1} \boxed{2": None,
        "no box": None,
    }

    assert {text: number(text) for text in numbers} == numbers
    assert {text: boxed(text) for text in formulas} == formulas


def test_hostile_text_is_read_once() -> None:
    """Patterns that went back over it would never come to an end."""
    for text in (
        "ANSWER" + " " * 200_000,
        "FINAL" + " " * 200_000 + "x",
        "ANSWER " * 50_000,
        "Answer:" + "1" * 200_000 + ".",
        "Answer:" + "\n" * 200_000 + "x",
        r"\boxed{" * 50_000,
        r"\boxed{" + " " * 200_000 + "x",
        "<|channel|>final" * 20_000,
        "**" * 100_000 + "a",
        "**a" * 70_000,
        "1," * 100_000,
    ):
        assert choice(text, "A-D") is None
        assert final_choice(text, "A-D") in {None, "A"}
        assert number(text) is None
        assert boxed(text) is None


@given(st.text("AaJ1 :.(*<|>\\{}bx", max_size=60))
def test_whatever_a_model_writes_is_an_answer_or_none(text: str) -> None:
    assert choice(text, "A-D") in {None, *"ABCD"}
    assert final_choice(text, "A-J") in {None, *"ABCDEFGHIJ"}
    assert number(text) in {None, *range(1000)}


PAIRS = [
    (r"\frac{1}{2}", "0.5", True),
    (r"\frac{1}{2}", "1/2", True),
    (r"\frac12", r"\dfrac{1}{2}", True),
    (r"\frac{1}{2}", r"\frac{2}{4}", False),  # not reduced
    (r"\sqrt3", r"\sqrt{3}", True),
    ("5", "x=5", True),
    ("5", "abc=5", False),
    ("10", r"10\text{ cm}", True),
    ("10", "10 degrees", True),
    ("90", r"90^\circ", True),
    ("1,000", "1000", True),
    ("5", "5.0", True),
    ("5", r"\$5", True),
    ("5", "4+1", False),  # a whole number has to be written out
    ("x+1", "1+x", True),
    ("2x", "x*2", True),
    ("x^2", "x*x", True),
    ("x+y+z", "z+y+x", False),  # three letters are not tried
    ("x^{12}", "x^{6}*x^{6}", False),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
    ("(1,2)", "( 1, 2 )", True),
    ("(1,2)", "[1,2]", False),
    ("(1,2)", "(1,2,3)", False),
    ("(x+1,2)", "(1+x,2)", True),
    (r"\text{Evelyn}", "evelyn", True),
    ("7 3/4", "31/4", True),
    ("3", "2.99999999", True),  # whole to 1e-7
    ("3", "", False),
    ("", "3", False),
    (r"\frac", "x", False),
    ("x", "((((((((((" * 200, False),
    ("x", "id", False),
    ("x", "().__class__", False),
]


@pytest.mark.slow
@pytest.mark.usefixtures("sympy")
def test_answers_are_the_same_as_prm800k_has_it() -> None:
    judged = [
        (target, answer, mathematics.is_same_answer(target, answer)) for target, answer, _ in PAIRS
    ]

    assert judged == PAIRS


@pytest.mark.slow
@pytest.mark.usefixtures("sympy")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.text("12x+-*/^(){}[],.\\ sqrtf=", min_size=1, max_size=25))
def test_an_answer_is_the_same_as_itself(text: str) -> None:
    assert mathematics.is_same_answer(text, text)


@pytest.mark.slow
@pytest.mark.usefixtures("sympy")
def test_an_answer_is_never_run(tmp_path: Path) -> None:
    """Not even by sympy, which evaluates text that it parses; octal digits need no letters."""
    canary = tmp_path / "canary"
    code = "".join(f"\\{ord(character):03o}" for character in f"open({str(canary)!r},'w')")

    for text in (f"sqrt('{code}')", f"x('{code}')", f"'{code}'", f"sqrt(x,'{code}')"):
        mathematics._same_value(f"(x)-({text})")

    assert not canary.exists()


@pytest.mark.process
@pytest.mark.usefixtures("sympy")
def test_an_answer_that_takes_too_long_is_wrong_and_the_next_is_compared() -> None:
    pairs = [("x", "9**9**9**9"), ("x+1", "1+x")]

    assert mathematics.same_answers(pairs, cpu_s=2) == [False, True]


@pytest.mark.process
def test_a_comparison_that_cannot_begin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "__name__", "pytest_mlperf.no_such_module")

    with pytest.raises(RunError, match=r"failed with exit code 1: .*no_such_module"):
        mathematics.same_answers([("x", "y")])


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}
    return write(tmp_path_factory.mktemp("harmony"), byte_level(MARKED), settings)


MARKED = (*SPECIAL, "<|channel|>", "<|message|>", "<|return|>")


def tokens(texts: list[str], dtype: str = "<i8", special: tuple[str, ...] = SPECIAL) -> list[bytes]:
    encoded = byte_level(special).encode_batch(texts)
    return [np.array([*one.ids, 2], dtype).tobytes() for one in encoded]


def of(metric: str, target: str) -> dict[str, str]:
    return {"metric": metric, "target": target}


SAMPLES = [
    (r"<think>..</think> \boxed{073}", of("AIME_2024", "73")),
    ("ANSWER: B", of("gpqa", "b")),
    ("ANSWER: A", of("gpqa", "B")),
    ("I pick j", of("mmlu_pro", "J")),
    (r"so \boxed{\frac{2}{4}}", of("math500", r"\frac{1}{2}")),
    (r"so \boxed{x+1}", of("math500", "1+x")),
    ("", of("math500", "1")),
]
TEXTS = [text for text, _ in SAMPLES]
REFERENCES = [reference for _, reference in SAMPLES]
RIGHT = [100.0, 100.0, 0.0, 100.0, 0.0, 100.0, 0.0]
GRADED = {"has_programs": False}


def test_with_programs_there_is_no_whole_score_but_one_of_each_part(model: Path) -> None:
    references = [of("gpqa_diamond", "B"), of("livecodebench_v6", "1873_A")]
    outputs = tokens(["ANSWER: B", "```python\npass\n```"])

    for scorer in (DeepSeekScorer, GptOssScorer):
        scores = scorer(model=str(model)).score(outputs, references)

        assert set(scores.aggregate) == {"gpqa", "tokens_per_sample"}
        assert scores.per_sample["gpqa"] == [100.0, None]
        left_out = scorer.left_out({})
        assert left_out.keys() == {"exact_match", "livecodebench"}
        assert "run_generated_code = true" in left_out["exact_match"]
        assert scorer.left_out(GRADED) == {}
        with pytest.raises(
            RunError, match="sample 1 has dataset 'livecodebench_v6', which has programs, but"
        ):
            scorer(model=str(model), **GRADED).score(outputs, references)


@pytest.mark.process
@pytest.mark.parametrize(
    ("scorer", "score"),
    [(DeepSeekScorer, 200 / 3), (GptOssScorer, round(100 * (1 / 5 + 1 / 3) / (1 / 5 + 2 / 3), 3))],
)
def test_programs_that_are_run_count_as_all_other_samples(
    scorer: type[DeepSeekScorer], score: float, model: Path, tmp_path: Path
) -> None:
    references = [of("gpqa_diamond", "B"), *[of("livecodebench_v6", "1873_A")] * 2]
    answers = ["ANSWER: B", "```python\nprint(4)\n```", "```python\nprint(5)\n```"]
    tests = [{"input": "3", "output": "4", "testtype": "stdin"}]
    row = {"question_id": "1873_A", "public_test_cases": json.dumps(tests), "metadata": "{}"}
    (tmp_path / "test.jsonl").write_text(json.dumps({**row, "private_test_cases": "[]"}), "utf-8")
    options = {"run_generated_code": True, "tests": str(tmp_path), "processes": 1}

    scores = scorer(model=str(model), **options).score(tokens(answers), references)

    assert scores.aggregate["exact_match"] == pytest.approx(score)
    assert scores.aggregate["livecodebench"] == 50
    assert scores.per_sample["livecodebench"] == [None, 100.0, 0.0]
    assert scorer.left_out(options) == {}


def test_wrong_options_and_inputs_are_refused(model: Path) -> None:
    options = [
        ({"run_generated_code": True}, "set both options run_generated_code"),
        ({"tests": "lcb"}, "set both options run_generated_code"),
        ({"run_generated_code": 1, "tests": "lcb"}, "is not true or false"),
        ({"processes": 0}, "is not a whole number of at least 1"),
    ]
    inputs = [
        (
            b"",
            of("bbh", "A"),
            "sample 1 has dataset 'bbh', which names none of gpqa, mmlu_pro",
        ),
        (b"", of("", "A"), "sample 1 has dataset '', which names none of"),
        (b"", {"metric": "gpqa"}, "of sample 1 has no text 'target'; use data set graded"),
        (b"\0" * 12, of("gpqa", "A"), "set the scorer's dtype to the type"),
    ]
    good = of("gpqa", "A")

    def score(output: bytes, reference: Any) -> None:
        DeepSeekScorer(model=str(model)).score([b"", output], [good, reference])

    assert (
        differences(
            lambda options: DeepSeekScorer(model=str(model), **options), SuiteError, options
        )
        == []
    )
    assert (
        differences(
            score, RunError, [(*row[:2], f"^scorer deepseek_r1: .*{row[2]}") for row in inputs]
        )
        == []
    )


def test_gpt_oss_weighs_samples_by_how_often_their_question_is_asked(harmony: Path) -> None:
    """Special tokens are part of the text; per sample the mean is the score."""
    names = ["aime25"] * 3 + ["gpqa_diamond"] * 2 + ["mmlu"]
    answers = [r"\boxed{5}", r"\boxed{6}", r"Answer: 5", f"{FINAL}B<|return|>", f"{FINAL}A", "J"]
    targets = ["5", "5", "5", "B", "B", "J"]
    outputs = tokens(answers, "<i4", MARKED)

    scores = GptOssScorer(model=str(harmony), dtype="int32", **GRADED).score(
        outputs, [of(*pair) for pair in zip(names, targets, strict=True)]
    )

    score = (2 / 8 + 1 / 5 + 1) / (3 / 8 + 2 / 5 + 1) * 100
    assert scores.aggregate["exact_match"] == float(f"{score:.3f}") == 81.690
    assert np.mean(scores.per_sample["exact_match"]) == pytest.approx(score)  # type: ignore[arg-type]
    assert scores.whole == {"exact_match"}
    assert scores.aggregate["aime"] == pytest.approx(200 / 3)
    assert scores.per_sample["mmlu_pro"] == [None] * 5 + [100.0]


@pytest.mark.usefixtures("sympy")
def test_missing_packages_are_named_before_a_run(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = DeepSeekScorer(model=str(model))
    scorer.require()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "tokenizers" or None)

    with pytest.raises(EnvironmentFault, match="needs sympy and pylatexenc"):
        scorer.require()


@pytest.mark.process
@pytest.mark.usefixtures("sympy")
def test_deepseeks_score_is_the_mean_of_all_rows(model: Path) -> None:
    outputs = tokens(TEXTS)

    scores = check_scorer(DeepSeekScorer, outputs, REFERENCES, model=str(model), options=GRADED)

    assert scores.per_sample["exact_match"] == RIGHT
    assert scores.per_sample["gpqa"] == [None, 100.0, 0.0, None, None, None, None]
    assert scores.aggregate == {
        "exact_match": 400 / 7,
        "gpqa": 50.0,
        "mmlu_pro": 100.0,
        "math500": 100 / 3,
        "aime": 100.0,
        "tokens_per_sample": sum(map(len, outputs)) / 8 / 7,
    }


@pytest.mark.process
def test_gpt_osss_scorer_keeps_the_contract(model: Path) -> None:
    graded = [n for n, one in enumerate(REFERENCES) if one["metric"] != "math500"]
    outputs = tokens([TEXTS[n] for n in graded])

    check_scorer(GptOssScorer, outputs, [REFERENCES[n] for n in graded], model=str(model))
