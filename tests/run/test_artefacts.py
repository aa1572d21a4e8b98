"""Test that attachments of an engine reach the scorer whole, or that the run names the error.

The way through replicas and LoadGen is in `test_replicas`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.run.child.reporter import Reporter
from pytest_mlperf.run.score import score
from pytest_mlperf.run.worker._delivery import OutputSink
from pytest_mlperf.stores import artefacts
from pytest_mlperf.stores.artefacts import (
    ARTEFACTS,
    NAME_PATTERN,
    ArtefactArchive,
    ArtefactWriter,
    artefact_fault,
)
from tests.run.harness import FEWER
from tests.run.test_score import written
from tests.run.test_sink import Received, give_up

NAMES = st.text("az09_-", min_size=1, max_size=8).filter(re.compile(NAME_PATTERN).fullmatch)


@FEWER
@given(
    st.dictionaries(
        st.integers(0, 2**40), st.dictionaries(NAMES, st.binary(), max_size=3), max_size=5
    )
)
def test_artefacts_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, tables: dict[int, dict[str, bytes]]
) -> None:
    path = tmp_path_factory.getbasetemp() / ARTEFACTS
    path.unlink(missing_ok=True)
    writer = ArtefactWriter(path)
    for index, table in tables.items():
        assert artefact_fault([index], [table]) == ""
        writer.add(index, table)
        writer.add(index, {"later": b"the first counts"})
    writer.close()

    archive = ArtefactArchive(path)

    assert {index: archive.read(index) for index in tables} == tables
    assert archive.read(2**41) == {}


def test_invalid_artefacts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "MAX_ARTEFACT_BYTES", 8)
    names = ["../engine.log", "/etc/passwd", "Video", "", 7]
    cases: list[tuple[Any, str]] = [
        ([], "was given 1 ids but 0 tables"),
        *(([{name: b""}], re.escape(f"an artefact named {name!r}")) for name in names),
        ([{"text\n": b""}], "an artefact named 'text"),
        ([{"x" * 65: b""}], "64 at most"),
        ([b"text"], "with a bytes; it takes a dict of bytes by name"),
        ([{"text": "text"}], "'text' with a 'str' as content; it must be bytes"),
        ([{"text": bytearray(b"text")}], "with a 'bytearray' as"),
        ([{f"part-{number}": b"" for number in range(17)}], "17 artefacts; at most 16"),
        ([{"video": bytes(9)}], "'video' of 9 bytes; 8 at most"),
    ]
    for attached, problem in cases:
        sink = OutputSink(give_up, Received().port, ArtefactWriter(Path("/nowhere")))
        sink.answer_tokens.record_indices([1], [0])
        with pytest.raises(RunError, match=problem) as raised:
            sink.attach([1], attached)
        assert raised.value.layer == "engine"


def test_an_archive_that_cannot_be_written_or_was_cut_or_is_too_large_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=r"cannot write artefacts to .*: No such file"):
        ArtefactWriter(tmp_path / "nowhere" / ARTEFACTS).add(0, {"text": b""})
    path = tmp_path / ARTEFACTS
    writer = ArtefactWriter(path)
    writer.add(0, {"text": b"x" * 100})
    writer.close()
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(RunError, match="is damaged: "):
            ArtefactArchive(path).read(0)
    path.write_bytes(whole.replace(b"xxxx", b"xxyx"))
    with pytest.raises(RunError, match="is damaged: Bad CRC"):
        ArtefactArchive(path).read(0)

    monkeypatch.setattr(artefacts, "MAX_TOTAL_BYTES", 20)
    writer = ArtefactWriter(tmp_path / ARTEFACTS)
    writer.add(0, {"text": bytes(20)})
    with pytest.raises(RunError, match="more than 20 bytes at sample 1"):
        writer.add(1, {"text": b"x"})


def test_artefacts_belong_to_samples_that_are_outstanding_and_come_once(tmp_path: Path) -> None:
    sink = OutputSink(give_up, Received().port, ArtefactWriter(tmp_path / ARTEFACTS))
    sink.expect([11, 12, 13])
    sink.answer_tokens.record_indices([11, 12, 13], [4, 2, 7])
    sink.attach([11, 12], [{"text": b"four"}, {"text": b"two"}])
    sink.attach([11], [{"text": b"again"}])
    sink.done([11, 12, 13], [b"a", b"b", b"c"])
    sink.attach([13, 99], [{"text": b"late"}, {"text": b"of nobody"}])
    sink.seal()

    assert [text.partition(",")[0] for text in sink.faults.texts] == [
        f"attach() was given id {sample}" for sample in (11, 13, 99)
    ]
    archive = ArtefactArchive(tmp_path / ARTEFACTS)
    assert {index: archive.read(index) for index in archive.names} == {
        4: {"text": b"four"},
        2: {"text": b"two"},
    }


class Lengths:
    artefacts = ("text",)

    def __init__(self, *, model: str | None) -> None:
        del model

    def score(
        self,
        outputs: Sequence[bytes],
        references: Sequence[Any],
        attached: Sequence[Mapping[str, bytes]],
    ) -> Scores:
        assert len(outputs) == len(references) == len(attached)
        lengths = [float(len(each["text"])) for each in attached]
        return Scores(per_sample={"length": lengths}, aggregate={"length": sum(lengths) / 3})


def test_a_scorer_gets_the_artefacts_of_each_sample_and_changed_ones_count_as_changed(
    tmp_path: Path,
) -> None:
    same, other = (
        scored(tmp_path, {0: b"", 1: b"one", 2: text}) for text in (b"seventh", b"Seventh")
    )

    assert same["per_sample"] == {"length": [0, 3, 7]}
    pairs = zip(same["outputs"], other["outputs"], strict=True)
    assert [one == another for one, another in pairs] == [True, True, False]
    with pytest.raises(RunError, match="sample 2 has no artefact text, which this scorer reads"):
        scored(tmp_path, {0: b"", 1: b"one"})


def scored(folder: Path, texts: Mapping[int, bytes]) -> dict[str, Any]:
    log = written(folder, (0, b"\0"), (1, b"\0"), (2, b"\0"))
    writer = ArtefactWriter(log.with_name(ARTEFACTS))
    for index, text in texts.items():
        writer.add(index, {"text": text})
    writer.close()
    scoring_spec = {
        "dataset": {"target": "tests.run.scorers_that_fail:Slow", "options": {"samples": 3}},
        "scorer": {"target": "tests.run.test_artefacts:Lengths", "options": {}},
        "model": None,
        "samples": 3,
        "blocks": [{"log": str(log), "indices": [0, 1, 2]}],
    }
    with Path(os.devnull).open("wb") as nowhere:
        return score(scoring_spec, Reporter(os.dup(nowhere.fileno())))
