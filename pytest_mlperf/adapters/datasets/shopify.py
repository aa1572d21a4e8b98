"""Read Shopify's product catalogue from Hugging Face: chats with a picture each."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.datasets.files import ChecksumOptions, FileDataset, encode
from pytest_mlperf.adapters.datasets.files.frames import find_table, read_frame
from pytest_mlperf.adapters.datasets.files.images import check_encoded, encode_again
from pytest_mlperf.adapters.datasets.prompts import SampleFile

TITLE_COLUMN, DESCRIPTION_COLUMN, IMAGE_COLUMN = (
    "product_title",
    "product_description",
    "product_image",
)
CHOICES_COLUMN, CATEGORY_COLUMN = "potential_product_categories", "ground_truth_category"
TABLE_COLUMNS = (TITLE_COLUMN, DESCRIPTION_COLUMN, IMAGE_COLUMN, CHOICES_COLUMN, CATEGORY_COLUMN)

SPLITS = ("train", "test")

SHARD = re.compile(rf"({'|'.join(SPLITS)})-([0-9]{{5}})-of-([0-9]{{5}})\.parquet")

DOCUMENTED = {
    "category": (
        'The complete category of the product, e.g.,\n"Clothing & Accessories > Clothing > Shirts '
        '> Polo Shirts".\nEach categorical level is separated by " > ".'
    ),
    "brand": 'The brand of the product, e.g., "giorgio armani".',
    "is_secondhand": "True if the product is second-hand, False otherwise.",
}

FIELD_TYPES = {"category": "string", "brand": "string", "is_secondhand": "boolean"}

ABOUT = {
    "v6.0": "Json format for the expected responses from the VLM.",
    "v6.1": (
        "JSON format for expected VLM responses (matches MLCommons Q3VL schema).\n\nReference: "
        "https://github.com/mlcommons/inference/blob/master/multimodal/qwen3-vl/src/"
        "mlperf_inf_mm_q3vl/schema.py"
    ),
}

SYSTEM_PROMPT = """\
Please analyze the product from the user prompt
and provide the following fields in a valid JSON object:
- category
- brand
- is_secondhand

You must choose only one, which is the most appropriate, correct, and {specific}
category out of the list of possible product categories.

The description of the product sometimes contains various types of source code
(e.g., JavaScript, CSS, HTML, etc.), where useful product information is embedded
somewhere inside the source code. For this task, you should extract the useful
product information from the source code and leverage it, and discard the
programmatic parts of the source code.

Your response should only contain a valid JSON object and nothing more, e.g.,
you should not fence the JSON object inside a ```json code block.
The JSON object should match the {following} JSON schema:
```json
{schema}
```
"""

USER = """\
The title of the product is the following:
```text
{title}
```

The description of the product is the following:
```text
{description}
```

The following are the possible product categories:
```json
{choices}
```
"""

SPELLED = {
    "v6.0": {"specific": "specifc", "following": "followng"},
    "v6.1": {"specific": "specific", "following": "following"},
}
"""Spelling in the prompts of a round, including its misspellings."""


def schema_of(version: str) -> dict[str, Any]:
    """Return the JSON schema of an answer in an MLPerf round, as pydantic generates it."""
    documented = DOCUMENTED if version == "v6.0" else {}
    properties = {
        name: {
            **({"description": documented[name]} if documented else {}),
            "title": name.replace("_", " ").title(),
            "type": kind,
        }
        for name, kind in FIELD_TYPES.items()
    }
    return {
        "additionalProperties": False,
        "description": ABOUT[version],
        "properties": properties,
        "required": list(FIELD_TYPES),
        "title": "ProductMetadata",
        "type": "object",
    }


def system_text(version: str) -> str:
    """Return the system message of an MLPerf round, "v6.0" or "v6.1"."""
    return SYSTEM_PROMPT.format(**SPELLED[version], schema=json.dumps(schema_of(version), indent=2))


def user_text(version: str, title: Any, description: Any, choices: list[str]) -> str:
    """Return the user message about a product in an MLPerf round; `choices` are the categories."""
    # v6.0 prints a Python list.
    listed = choices if version == "v6.0" else json.dumps(choices)
    return USER.format(title=title, description=description, choices=listed)


@dataclass(frozen=True, kw_only=True)
class ShopifyOptions(ChecksumOptions, dataset="shopify"):
    """Options of the data set shopify.

    Attributes:
        path: Folder with the Parquet files under their names on Hugging Face, directly or in its
            subfolder `data`; or a single table.
        prompts: MLPerf round of the prompts, "v6.0" or "v6.1"; they differ in two words, in the
            JSON schema, and in the list of categories.
        guided: Whether to request answers that follow the JSON schema, by `response_format` of a
            chat; optional in the reference, and off by default. For engines that use a server.
        checksum: "md5:" or "sha256:" and the hex digits over all files in sequence, "train" first.
    """

    prompts: str = "v6.1"
    guided: bool = False

    def __post_init__(self) -> None:
        versions = " or ".join(f'"{name}"' for name in SPELLED)
        self.check(
            ("prompts", self.prompts, self.prompts in SPELLED, versions),
            ("guided", self.guided, isinstance(self.guided, bool), "true or false"),
        )

    def find(self) -> list[Path]:
        root = Path(self.path)
        for folder in (root, root / "data"):
            if shards := _shards(folder):
                find_table(shards[0])  # requires pyarrow
                return shards
        return [
            find_table(
                root,
                advice=(
                    "get it with: hf download Shopify/product-catalogue --repo-type dataset "
                    "--local-dir FOLDER, and set the data set's path to the folder"
                ),
            )
        ]


class ShopifyDataset(FileDataset[str]):
    """Chats: a system message with the schema, and a user message with text and a picture.

    Messages are those of multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/task.py of mlcommons/inference
    (v6.0), and of the preset `q3vl` of mlcommons/endpoints (v6.1), both on GitHub. As there, Pillow
    re-encodes each picture in its own format, and a missing description becomes the text "None".
    """

    libraries = ("PIL",)
    optional_libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)
    options = ShopifyOptions

    def _read(self, options: ShopifyOptions, files: list[Path]) -> None:
        self.kind = f"shopify {options.prompts} {options.guided}".encode()
        self._sources: list[tuple[SampleFile, int]] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in TABLE_COLUMNS}
        for file in files:
            table = read_frame(file, columns=TABLE_COLUMNS)
            source = SampleFile(file=file)
            source.check_size(len(table[CATEGORY_COLUMN]), None)
            for row, cells in enumerate(zip(*(table[name] for name in TABLE_COLUMNS), strict=True)):
                for name, cell in zip(TABLE_COLUMNS, _cells_of(source, row, cells), strict=True):
                    self._columns[name].append(cell)
                self._sources.append((source, row))
        source_path = files[0] if len(files) == 1 else files[0].parent
        self._keep(self._columns[CATEGORY_COLUMN], options.count, source_path)

    def input(self, index: int) -> dict[str, Any]:
        """Return the messages of one chat; with option `guided` also its "response_format"."""
        version, row = self._asked.prompts, self._checked(index)
        content: list[dict[str, Any]] = [
            {"type": "text", "text": self._text(row)},
            {"type": "image_url", "image_url": {"url": self._url(row)}},
        ]
        messages = [
            {"role": "system", "content": system_text(version)},
            {"role": "user", "content": content},
        ]
        if not self._asked.guided:
            return {"messages": messages}
        wrapped = {"name": "product_metadata", "schema": schema_of(version), "strict": True}
        form = {"type": "json_schema", "json_schema": wrapped}
        return {"messages": messages, "response_format": form}

    def _content(self, index: int) -> tuple[bytes, bytes, bytes]:
        text, category = encode(self._text(index)), encode(self._samples[index])
        return text, self._columns[IMAGE_COLUMN][index], category

    def _text(self, row: int) -> str:
        title, description, choices = (
            self._columns[name][row] for name in (TITLE_COLUMN, DESCRIPTION_COLUMN, CHOICES_COLUMN)
        )
        return user_text(self._asked.prompts, title, description, choices)

    def _url(self, index: int) -> str:
        source, row = self._sources[index]
        try:
            name, content = encode_again(self._columns[IMAGE_COLUMN][index])
        except ValueError as error:
            raise source.wrong(row, IMAGE_COLUMN, str(error)) from error
        return f"data:image/{name};base64,{base64.b64encode(content).decode('ascii')}"


def _shards(folder: Path) -> list[Path]:
    """Return a folder's Parquet files in MLPerf's order; raise UnavailableError if incomplete."""
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    parts = [match for match in map(SHARD.fullmatch, names) if match]
    listed: list[Path] = []
    for split in SPLITS:
        counts = {int(part[3]) for part in parts if part[1] == split}
        if len(counts) > 1:
            raise UnavailableError(
                f"{folder}: its {split} tables come from several downloads, which have "
                f"{' and '.join(map(str, sorted(counts)))} tables; delete all tables but those of "
                "one download"
            )
        for number in range(total := max(counts, default=0)):
            listed.append(folder / f"{split}-{number:05}-of-{total:05}.parquet")
    missing = [file.name for file in listed if file.name not in names]
    if missing:
        raise UnavailableError(
            f"{folder}: {len(missing)} of {len(listed)} tables are not here, the first is "
            f"{missing[0]}; download the missing tables into this folder"
        )
    return listed


def _cells_of(source: SampleFile, row: int, cells: tuple[Any, ...]) -> tuple[Any, ...]:
    title, description, image, choices, category = cells
    for name, cell in ((TITLE_COLUMN, title), (DESCRIPTION_COLUMN, description)):
        if cell is not None:
            source.text(row, name, cell)
    content = image.get("bytes") if isinstance(image, Mapping) else image
    if not isinstance(content, bytes):
        raise source.wrong(row, IMAGE_COLUMN, "it does not hold the bytes of a picture")
    if defect := check_encoded(content):
        raise source.wrong(row, IMAGE_COLUMN, defect)
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise source.wrong(row, CHOICES_COLUMN, "it is not a list of texts")
    if not source.text(row, CATEGORY_COLUMN, category):
        raise source.wrong(row, CATEGORY_COLUMN, "it is empty")
    return title, description, content, choices, category
