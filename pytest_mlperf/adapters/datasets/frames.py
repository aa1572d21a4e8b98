"""Read the questions (FRAMES) and web pages of MLPerf's end-to-end RAG benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.columns import csv_records
from pytest_mlperf.adapters.datasets.files.json_lines import broken_line

OFFICIAL_FILE = "frames_dataset.tsv"
QUESTION_COLUMN, ANSWER_COLUMN, LINK_PREFIX = "Prompt", "Answer", "wikipedia_link_"
PAGES = "*.html"
ADVICE = "get it as README.md in e2e-rag of MLPerf's inference repository says"


@dataclass(frozen=True, kw_only=True)
class FramesOptions(files.ChecksumOptions, dataset="frames", noun="questions"):
    """Options of the data set frames.

    Attributes:
        path: Tab-separated table, or a folder with frames_dataset.tsv or with only one table.
    """

    def find(self) -> Path:
        return files.find_file(
            Path(self.path),
            official=(OFFICIAL_FILE,),
            endings=(".tsv",),
            whole="table",
            advice=f"{ADVICE}, and set the data set's path to it",
        )


class FramesDataset(files.FileDataset[Mapping[str, Any]]):
    """Questions in the order of the table, with reference answers and links to web pages.

    The columns are `Prompt`, `Answer`, and all that begin with `wikipedia_link_`, as in
    e2e-rag/QSL.py of https://github.com/mlcommons/inference.
    """

    options = FramesOptions
    kind = b"frames"

    def _read(self, options: FramesOptions, table: Path) -> None:
        self._keep(list(_questions(table)), options.count, table)

    def input(self, index: int) -> str:
        return str(self._sample(index)["question"])

    def _content(self, index: int) -> list[bytes]:
        sample = self._samples[index]
        return list(map(files.encode, (sample["question"], sample["answer"], *sample["links"])))


def _questions(table: Path) -> Iterator[dict[str, Any]]:
    for line, row in csv_records(table, (QUESTION_COLUMN, ANSWER_COLUMN), delimiter="\t"):
        if not row[QUESTION_COLUMN]:
            raise broken_line(table, line, "its question is empty")
        links = [cell for name, cell in row.items() if name.startswith(LINK_PREFIX) and cell]
        yield {"question": row[QUESTION_COLUMN], "answer": row[ANSWER_COLUMN], "links": links}


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
                f"{folder}: no pages ({PAGES}) are here; {ADVICE.replace('it', 'docs.tar.gz', 1)}, "
                "unpack it, and set the data set's path to its folder"
            )
        return pages


class PagesDataset(files.FileDataset[Path]):
    """Web pages in the order of their names, which fill the vector store of e2e-rag-db.

    The engine reads and parses them inside the timed run, as e2e-rag/reference_SUT_datasetup.py of
    https://github.com/mlcommons/inference does. Use the archived pages in docs.tar.gz, because live
    pages change.
    """

    options = PagesOptions
    kind = b"frames-pages"

    def _read(self, options: PagesOptions, pages: Sequence[Path]) -> None:
        self._keep(pages, options.count, pages[0].parent)

    def input(self, index: int) -> dict[str, str]:
        page = self._sample(index)
        return {"path": str(page), "name": page.name}

    def reference(self, index: int) -> str:
        return self._sample(index).name

    def _content(self, index: int) -> tuple[bytes, bytes]:
        page = self._samples[index]
        return files.encode(page.name), page.read_bytes()
