"""Read the questions (FRAMES) and web pages of MLPerf's end-to-end RAG benchmark."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.columns import places
from pytest_mlperf.adapters.datasets.files.json_lines import broken_line, lines_of

OFFICIAL_FILE = "frames_dataset.tsv"
QUESTION_COLUMN, ANSWER_COLUMN, LINK_PREFIX = "Prompt", "Answer", "wikipedia_link_"
PAGES = "*.html"
ADVICE = "get it as README.md in e2e-rag of MLPerf's inference repository says"


@dataclass(frozen=True, kw_only=True)
class FramesOptions(files.ChecksumOptions, dataset="frames", noun="questions"):
    """Options of the data set frames.

    Attributes:
        path: Table with tabs between columns, or a folder with frames_dataset.tsv or a single
            table.
    """

    def find(self) -> Path:
        return files.find_file(
            Path(self.path),
            official=(OFFICIAL_FILE,),
            endings=(".tsv",),
            lacks=f"no {OFFICIAL_FILE}",
            whole="table",
            advice=f"{ADVICE}, and set the data set's path to it",
        )


class FramesDataset(files.FileDataset[Mapping[str, Any]]):
    """Questions in the order of the table, with correct answers and links to their pages.

    The columns are `Prompt`, `Answer`, and all that begin with `wikipedia_link_`, as in
    e2e-rag/QSL.py of https://github.com/mlcommons/inference.
    """

    options = FramesOptions
    unit = "question"
    kind = b"frames"

    def _read(self, options: FramesOptions, table: Path) -> None:
        files.check_file(table, options.checksum)
        samples = list(_questions(table))
        if not samples:
            raise files.wrong(table, "the table has no questions", ADVICE)
        self._keep(samples, options.count, table, f"the table has {len(samples)} questions")

    def input(self, index: int) -> str:
        return str(self._sample(index)["question"])

    def reference(self, index: int) -> Mapping[str, Any]:
        return self._sample(index)

    def _content(self, index: int) -> list[bytes]:
        sample = self._samples[index]
        return list(map(files.encode, (sample["question"], sample["answer"], *sample["links"])))


def _questions(table: Path) -> Iterator[dict[str, Any]]:
    reader = csv.reader(lines_of(table), delimiter="\t", strict=True)
    try:
        header = next(reader, [])
        at = places(table, header, (QUESTION_COLUMN, ANSWER_COLUMN))
        linked = [place for place, name in enumerate(header) if name.startswith(LINK_PREFIX)]
        for row in reader:
            if len(row) != len(header):
                defect = f"it has {len(row)} cells, and the header {len(header)}"
                raise broken_line(table, reader.line_num, defect)
            question, answer = (row[place] for place in at.values())
            if not question:
                raise broken_line(table, reader.line_num, "its question is empty")
            links = [row[place] for place in linked if row[place]]
            yield {"question": question, "answer": answer, "links": links}
    except csv.Error as error:
        raise broken_line(table, reader.line_num, f"{error}") from error


@dataclass(frozen=True, kw_only=True)
class PagesOptions(files.FileOptions, dataset="frames-pages", noun="pages"):
    """Options of the data set frames-pages.

    Attributes:
        path: Folder of the pages.
    """

    path: str

    def find(self) -> Sequence[Path]:
        folder = Path(self.path)
        # Sorted by name as text, as in the reference.
        pages = sorted(folder.glob(PAGES), key=lambda page: page.name)
        if not pages:
            raise UnavailableError(
                f"{folder}: no pages ({PAGES}) are here; unpack docs.tar.gz, {ADVICE}, and set the "
                "data set's path to its folder"
            )
        return pages


class PagesDataset(files.FileDataset[Path]):
    """Web pages in the order of their names, the content of e2e-rag-db's vector store.

    The engine reads and parses them inside the timed run, as e2e-rag/reference_SUT_datasetup.py of
    https://github.com/mlcommons/inference does. Use the frozen pages of docs.tar.gz: live pages
    differ.
    """

    options = PagesOptions
    unit = "page"
    kind = b"frames-pages"

    def _read(self, options: PagesOptions, pages: Sequence[Path]) -> None:
        self._keep(pages, options.count, pages[0].parent, f"the folder has {len(pages)} pages")

    def input(self, index: int) -> dict[str, str]:
        page = self._sample(index)
        return {"path": str(page), "name": page.name}

    def reference(self, index: int) -> str:
        return self._sample(index).name

    def _content(self, index: int) -> tuple[bytes, bytes]:
        page = self._samples[index]
        return files.encode(page.name), page.read_bytes()
