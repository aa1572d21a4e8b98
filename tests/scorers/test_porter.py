from __future__ import annotations

from itertools import product
from string import ascii_lowercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer

from pytest_mlperf.scorers.porter import IRREGULAR, stem


def listed(text: str) -> list[str]:
    return text.split()


STARTS = listed("""
    b y yy by toy sky spi di pl tr oa ap cre hop fil hiss fall fizz agr rel sens rat form controll
    vis analog geo adop commun boy buy syzyg oyster x1 2024 abba eee annex
""")

SUFFIXES = listed("""
    s es ies sses ss ed ied eed ing y ly at bl iz ational tional enci anci izer bli abli alli entli
    eli ousli ization ation ator alism iveness fulness ousness aliti iviti biliti fulli logi icate
    ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment ent sion tion ion ou
    ism ate iti ous ive ize e ll le
""")

NLTK = PorterStemmer()


@pytest.mark.parametrize("start", STARTS)
def test_every_suffix_after_another_is_removed_as_nltk_does(start: str) -> None:
    words = [start + "".join(ends) for ends in product(["", *SUFFIXES], repeat=2)]

    assert [stem(word) for word in words] == [NLTK.stem(word) for word in words]


def test_every_word_of_three_letters_has_nltks_stem() -> None:
    words = ["".join(letters) for letters in product(ascii_lowercase, repeat=3)]

    assert [stem(word) for word in words] == [NLTK.stem(word) for word in words]


@given(st.text(ascii_lowercase + digits, min_size=1, max_size=30))
def test_any_word_has_nltks_stem(word: str) -> None:
    assert stem(word) == NLTK.stem(word)


@given(st.text("aeybslt1", min_size=1, max_size=12), st.lists(st.sampled_from(SUFFIXES)))
def test_any_start_before_any_suffixes_has_nltks_stem(start: str, ends: list[str]) -> None:
    word = start + "".join(ends)

    assert stem(word) == NLTK.stem(word)


def test_the_irregular_words_are_nltks() -> None:
    assert NLTK.pool == IRREGULAR
