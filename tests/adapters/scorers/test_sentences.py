"""Sentences as NLTK splits them, with a Punkt model made here in the form of its package."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.adapters.scorers.rouge.punkt import PUNKT_FILES, Punkt
from pytest_mlperf.core.errors import RunError, UnavailableError
from tests.adapters.scorers.refusals import differences

TEXT = (
    "Dr. No met Mr. Smith at 5 p.m. in the U.S. capital.  He spoke. of him?\nYes! "
    "He went home. Then J. Doe came. It was No. 5."
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("nltk")
    (tmp_path / "abbrev_types.txt").write_text("dr\nmr\np.m\nu.s\nno", "utf-8")
    (tmp_path / "collocations.tab").write_text("no\t##number##\ncompany\tdoe", "utf-8")
    (tmp_path / "sent_starters.txt").write_text("he\nthen", "utf-8")
    (tmp_path / "ortho_context.tab").write_text("he\t46\nof\t32\ncars\t32\n", "utf-8")
    return tmp_path


def test_texts_are_split_as_nltk_splits_them_with_the_same_model(folder: Path) -> None:
    """Not at abbreviations and numbers of the model; white space between sentences is dropped."""
    nltk_punkt = pytest.importorskip("nltk.tokenize.punkt")
    model = nltk_punkt.PunktParameters()
    model.abbrev_types |= {"dr", "mr", "p.m", "u.s", "no"}
    model.collocations |= {("no", "##number##"), ("company", "doe")}
    model.sent_starters |= {"he", "then"}
    model.ortho_context.update({"he": 46, "of": 32, "cars": 32})

    sentences = Punkt(scorer="rouge", folder=folder).load()(TEXT)

    assert sentences == nltk_punkt.PunktSentenceTokenizer(model).tokenize(TEXT)
    assert sentences[0] == "Dr. No met Mr. Smith at 5 p.m. in the U.S. capital."
    assert sentences != nltk_punkt.PunktSentenceTokenizer().tokenize(TEXT)


def test_every_file_of_the_model_counts(folder: Path) -> None:
    for name, text, sentences in (
        ("abbrev_types.txt", "He met Mr. Smith.", 1),
        ("collocations.tab", "The company. Doe left.", 1),
        ("ortho_context.tab", "At 5 p.m. Cars left.", 2),
        ("sent_starters.txt", "At 5 p.m. Then he left.", 2),
    ):
        content = (folder / name).read_text("utf-8")
        sentence_list = Punkt(scorer="rouge", folder=folder).load()(text)
        (folder / name).write_text("", "utf-8")
        without = Punkt(scorer="rouge", folder=folder).load()(text)
        (folder / name).write_text(content, "utf-8")

        assert (len(sentence_list), len(without)) == (sentences, 3 - sentences), name
    assert Punkt(scorer="rouge", folder=folder).load()("") == []


def test_files_that_are_missing_or_of_something_else_are_refused(folder: Path) -> None:
    unreadable = r"cannot be read \(.*\); get NLTK's package punkt_tab"
    contents = [
        ("collocations.tab", b"one", unreadable),
        ("collocations.tab", b"a\tb\tc", unreadable),
        ("ortho_context.tab", b"he", unreadable),
        ("ortho_context.tab", b"he\tmany", unreadable),
        ("abbrev_types.txt", b"\xff", unreadable),
    ]
    missing = [
        (
            name,
            f"^scorer rouge: the Punkt model in {folder} lacks {name}; get NLTK's package "
            "punkt_tab, and set the scorer's punkt to its folder english$",
        )
        for name in PUNKT_FILES
    ]

    def load(name: str, content: bytes) -> None:
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        try:
            Punkt(scorer="rouge", folder=folder).load()
        finally:
            (folder / name).write_bytes(original)

    def check(name: str) -> None:
        aside = (folder / name).rename(folder / "aside")
        try:
            Punkt(scorer="rouge", folder=folder).check()
        finally:
            aside.rename(folder / name)

    assert differences(load, RunError, contents) == []
    assert differences(check, UnavailableError, missing) == []
