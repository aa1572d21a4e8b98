"""The committed figures of MLPerf v4.1: complete, equal to what was printed and logged."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.origin import Source
from pytest_mlperf.core.published import Published, PublishedFile
from pytest_mlperf.stores.documents import Document
from pytest_mlperf.stores.published import load, path_for, save
from tests.core.transcription import ROWS, V41, corrected, id_of

BASELINES = Path(__file__).parents[2] / "baselines"
COMMITTED = path_for(BASELINES, round_name="v4.1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everything:
    """A file that may hold any figure, official or not."""

    schema: int = 1
    figures: tuple[Published, ...]


ANY = Document(Everything, schema=1, what="file of figures")


@pytest.fixture(scope="module")
def committed() -> PublishedFile:
    found = load(COMMITTED)
    assert found is not None
    return found


def test_the_path_names_the_round() -> None:
    assert COMMITTED.relative_to(BASELINES) == Path("published/v4.1.json")


def test_the_committed_figures_are_those_of_the_transcription(committed: PublishedFile) -> None:
    """All 70 throughputs and 17 efficiencies, each with the official value that it rounds."""
    expected = tuple(corrected(row) for row in ROWS if row["page"] == "A")

    assert committed.figures == expected
    assert Counter("watt" in figure.metric for figure in committed.figures) == {False: 70, True: 17}
    assert all(figure.logged is not None for figure in committed.figures)
    assert (committed.round, committed.purpose) == ("v4.1", "for reference, never a gate")


def test_the_committed_file_is_what_save_writes(committed: PublishedFile, tmp_path: Path) -> None:
    save(tmp_path / "again.json", committed)

    assert (tmp_path / "again.json").read_bytes() == COMMITTED.read_bytes()
    assert COMMITTED.stat().st_size < 150_000


def test_every_committed_figure_is_of_a_result_that_the_round_has(
    committed: PublishedFile,
) -> None:
    """Result field by the round's table; the path says the same division, submitter and run."""
    for figure in committed.figures:
        given = {field.name: getattr(figure, field.name) for field in dataclasses.fields(Published)}
        assert Published.checked(V41, **given) == figure
        path = figure.origin.path
        assert path is not None
        division, submitter, results, _, model, scenario = path.split("/")
        assert (division, submitter) == (figure.origin.division, figure.origin.submitter)
        assert (results, scenario) == ("results", figure.scenario)
        assert model.removeprefix(figure.workload) in ("", f"-{figure.variant}")


def test_five_rates_say_that_their_printed_unit_cannot_be(committed: PublishedFile) -> None:
    lines = [
        figure.origin.line
        for figure in committed.figures
        if figure.metric == "tokens_per_second" and (figure.note or "").startswith("printed in ")
    ]

    assert lines == [84, 85, 86, 103, 116]


def test_language_models_keep_their_own_tokens_per_sample(committed: PublishedFile) -> None:
    """Never the reference's 294.45 or 145.9; gptj's is LoadGen's constant and says so."""
    by_workload: dict[str, set[str]] = {}
    for figure in committed.figures:
        tokens = figure.tokens_per_sample
        assert (tokens is not None) is figure.metric.startswith("tokens_")
        if tokens is not None:
            by_workload.setdefault(figure.workload, set()).add(str(tokens))
            assert tokens.value not in (294.45, 145.9)

    assert by_workload.keys() == {"llama2-70b", "mixtral-8x7b", "gptj"}
    assert by_workload["gptj"] == {"LoadGen's constant of 69 tokens per sample"}
    assert len(by_workload["llama2-70b"]) > 5


def test_previews_are_marked(committed: PublishedFile) -> None:
    previews = [
        str(figure.accelerator)
        for figure in committed.figures
        if figure.origin.source is Source.PREVIEW
    ]

    assert previews == ["B200", "B200"]


@pytest.mark.parametrize("row", ROWS, ids=id_of)
def test_each_of_the_132_round_trips_through_json(row: dict[str, str], tmp_path: Path) -> None:
    content = Everything(figures=(corrected(row),))
    ANY.save(tmp_path / "one.json", content)
    raw = json.loads((tmp_path / "one.json").read_text("utf-8"))

    assert ANY.load(tmp_path / "one.json") == content
    (figure,) = raw["figures"]
    assert figure["printed"]["quantity"]["unit"] == str(content.figures[0].quantity.unit)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"unit": "tokens/s"', '"unit": "queries/s"', "figures[0]: llama2-70b Offline in v4.1"),
        ('"unit": "tokens/s"', '"unit": "tok/s"', "figures[0].printed.quantity.unit: must be "),
        ('"unit": "tokens/s"', '"unit": "s"', "is printed in s, but result_tokens_per_second"),
        ('"value": 11264.0', '"value": -1.0', "must be finite, at least 0"),
        ('"value": 11264.0', '"value": 11270.0', "no rounding of the logged 11,264.4"),
        ('"source": "mlperf-preview"', '"source": "mlperf"', "contradict each other"),
        ('"round": "v4.1"', '"round": "v5.0"', "this file is for official figures of"),
        ('"metric": "tokens_per_second"', '"metric": "top1"', "unknown metric 'top1'"),
        ('"schema": 1', '"schema": 2', "written by a newer pytest-mlperf"),
    ],
)
def test_a_file_whose_figures_cannot_be_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """A unit is written by our own symbol, and what reading finds is what building refuses."""
    text = COMMITTED.read_text("utf-8")
    assert old in text
    path = tmp_path / "v4.1.json"
    path.write_text(text.replace(old, new, 1), "utf-8")

    with pytest.raises(BaselineError) as error:
        load(path)
    assert message in str(error.value)


def test_there_are_no_figures_where_there_is_no_file(tmp_path: Path) -> None:
    assert load(path_for(tmp_path, round_name="v4.1")) is None
