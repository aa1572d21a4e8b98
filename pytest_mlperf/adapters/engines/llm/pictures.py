"""Convert chats with pictures to token ids, by the model's chat template, and encoder inputs."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf import Dataset
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.engines import broken, refused_sample, require_module
from pytest_mlperf.extension import text_of

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Picture formats, by Pillow's names, that start no other program."""

DATA, BASE64 = "data:image/", ";base64,"


def has_chats(dataset: Dataset) -> bool:
    """Return whether a data set's samples are messages, and not text or token ids."""
    sample = dataset.input(0) if len(dataset) else None
    return isinstance(sample, Mapping) and "messages" in sample


@dataclass(kw_only=True, slots=True)
class PictureChats:
    """Convert chats with one user message to a model's token ids.

    Attributes:
        tokenizer: The model's tokenizer, with its chat template.
        picture_token: Token that stands for a picture, or for each patch of it.
        processor: Computes the patches of pictures; None if the library does this, so that each
            picture is one token.
    """

    tokenizer: Any
    picture_token: int
    processor: Any = None
    _pictures: dict[int, list[bytes]] = field(default_factory=dict)

    def tokens(self, index: int, request: Mapping[str, Any]) -> list[int]:
        """Return a chat's token ids, and keep its pictures."""
        if further := sorted(set(request) - {"messages"}):
            fault = (
                f"has {', '.join(further)}, which this engine does not support; use engine openai "
                "with a server that does"
            )
            raise refused_sample(index, fault)
        pictures: list[bytes] = []
        try:
            messages = [
                {**message, "content": _parts(index, message.get("content"), pictures)}
                for message in request["messages"]
            ]
        except (TypeError, AttributeError, LookupError) as error:
            fault = f"is not a chat of text and pictures: {text_of(error)}"
            raise refused_sample(index, fault) from error
        try:
            ids = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template may raise any error
            fault = f"does not fit the model's chat template: {text_of(error)}"
            raise refused_sample(index, fault) from error
        if ids.count(self.picture_token) != len(pictures):
            raise refused_sample(
                index,
                f"has {len(pictures)} pictures, but the model's chat template writes the picture "
                f"token {self.picture_token} {ids.count(self.picture_token)} times; use the chat "
                "template of a model that takes pictures",
            )
        counts = iter(self._counts(index, pictures))
        self._pictures[index] = pictures
        return [
            part
            for token in ids
            for part in ([token] * next(counts) if token == self.picture_token else [token])
        ]

    def pictures(self, index: int) -> list[Any]:
        return [_decoded(index, content).convert("RGB") for content in self._pictures[index]]

    def forget(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._pictures.pop(index, None)

    def features(self, indices: Sequence[int], tokens: Any) -> dict[str, Any]:
        """Return the picture inputs of a model; `tokens` are token ids, shape (chats, tokens)."""
        pictures = [picture for index in indices for picture in self.pictures(index)]
        patches = dict(self.processor(images=pictures, return_tensors="pt")) if pictures else {}
        return {**patches, "mm_token_type_ids": (tokens == self.picture_token).int()}

    def _counts(self, index: int, pictures: Sequence[bytes]) -> list[int]:
        if self.processor is None:
            return [1] * len(pictures)
        sizes = [_decoded(index, content, header=True).size for content in pictures]
        return [
            self.processor.get_number_of_image_patches(height, width)
            // self.processor.merge_size**2
            for width, height in sizes
        ]


def picture_processor(engine: str, folder: Path) -> Any:
    """Load a model's image processor, which computes picture patches; torchvision is not used."""
    require_module(f"engine {engine}", "jinja2", "pictures", "the model's chat template")
    try:
        import PIL.Image  # noqa: F401
        from transformers import AutoImageProcessor
    except ImportError as error:
        library = f"{error.name} for the data set's pictures"
        raise not_installed(f"engine {engine}", library, "pictures") from error
    try:
        # Pillow, since torchvision resizes to other pixels.
        return AutoImageProcessor.from_pretrained(
            folder, backend="pil", local_files_only=True, trust_remote_code=False
        )
    # A broken file raises errors of the library that reads it.
    except Exception as error:
        raise broken(
            folder, f"transformers cannot read preprocessor_config.json: {text_of(error)}"
        ) from error


def _parts(index: int, content: Any, pictures: list[bytes]) -> Any:
    """Convert a message's content for chat templates; append its pictures to `pictures`."""
    if isinstance(content, str):
        return content
    parts = []
    for part in content or ():
        kind = part.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "image_url":
            pictures.append(_content(index, str(part["image_url"]["url"])))
            parts.append({"type": "image"})
        else:
            raise refused_sample(
                index, f"has a part of type {kind!r}; only text and pictures are supported"
            )
    return parts


def _content(index: int, url: str) -> bytes:
    head, separator, encoded = url.partition(BASE64)
    if not separator or not head.startswith(DATA):
        raise refused_sample(
            index, f"has a picture at {url[:40]!r}, but nothing is downloaded; use data URLs"
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise refused_sample(index, f"has a picture that is not base64 ({error})") from error


def _decoded(index: int, content: bytes, *, header: bool = False) -> Any:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(content), formats=PICTURE_FORMATS)
        if not header:
            image.load()
    except Exception as error:  # decoders may raise any error
        raise refused_sample(index, f"has a picture that is damaged ({error})") from error
    return image
