"""Read and check a file in the layout of SQuAD v1.1: articles, paragraphs, questions, answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_mlperf.core.errors import RunError

VERSION = "1.1"

T = TypeVar("T", str, list[Any])

_KINDS = {str: "a text", list: "a list"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question about a paragraph, and every text that counts as its answer."""

    identity: str
    text: str
    answers: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A paragraph and its questions, in the order of the file.

    Attributes:
        where: Names the file and the place in it.
        context: The text that the answers are found in.
        questions: May be empty.
    """

    where: str
    context: str
    questions: list[Question]


def read_passages(path: Path) -> list[Passage]:
    """Read a file, and check every key that is used; articles and so on are counted from 1.

    Raises:
        RunError: It is no such file, or incomplete; names the place and the key.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(
            "dataset",
            f"{path}: is no JSON ({error}): the file is incomplete or another one; get SQuAD's "
            "dev-v1.1.json again",
        ) from error
    version = _field(content, "version", str, where=str(path))
    if version != VERSION:
        raise RunError(
            "dataset",
            f"{path}: is SQuAD of version {version!r}, but MLPerf's BERT takes {VERSION!r}; set "
            "path to dev-v1.1.json",
        )
    passages = list(_passages(content, path))
    _check_identities(passages)
    return passages


def _passages(content: Any, path: Path) -> Iterator[Passage]:
    for article, entry in enumerate(_field(content, "data", list, where=str(path)), start=1):
        inside = f"{path}: article {article}"
        for number, paragraph in enumerate(_field(entry, "paragraphs", list, where=inside), 1):
            where = f"{inside}, paragraph {number}"
            asked = _field(paragraph, "qas", list, where=where)
            yield Passage(
                where=where,
                context=_field(paragraph, "context", str, where=where),
                questions=[
                    _question(record, f"{where}, question {nth}")
                    for nth, record in enumerate(asked, 1)
                ],
            )


def _question(record: Any, where: str) -> Question:
    answers = _field(record, "answers", list, where=where)
    if not answers:
        raise RunError(
            "dataset",
            f"{where}: has no answer, but each question of SQuAD {VERSION} has at least one; "
            "correct the file, or get dev-v1.1.json again",
        )
    return Question(
        identity=_field(record, "id", str, where=where),
        text=_field(record, "question", str, where=where),
        answers=[
            _field(answer, "text", str, where=f"{where}, answer {number}")
            for number, answer in enumerate(answers, 1)
        ],
    )


def _field(record: Any, key: str, kind: type[T], *, where: str) -> T:
    """Return a value of an object, if it is of that kind."""
    expected = f"where SQuAD {VERSION} has an object with {key!r}, {_KINDS[kind]}"
    if not isinstance(record, dict):
        found = f"is a value of type {type(record).__name__}"
    elif key not in record:
        found = f"has {', '.join(map(repr, list(record)[:8])) or 'no key'}"
    elif not isinstance(record[key], kind):
        found = f"has {key!r} of type {type(record[key]).__name__}"
    else:
        value: T = record[key]
        return value
    raise RunError(
        "dataset", f"{where}: {found}, {expected}; correct the file, or get dev-v1.1.json again"
    )


def _check_identities(passages: list[Passage]) -> None:
    """Refuse an id that is there twice: a score belongs to one question."""
    seen: set[str] = set()
    for passage in passages:
        for question in passage.questions:
            if question.identity in seen:
                raise RunError(
                    "dataset",
                    f"{passage.where}: the id {question.identity!r} is also that of an earlier "
                    "question; correct the file, or get dev-v1.1.json again",
                )
            seen.add(question.identity)
