"""Chats with pictures as token ids: by the model's template, with a place for each part."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm.generation import TextOptions, TokenPrompts
from pytest_mlperf.adapters.engines.llm.model_folder import picture_chats
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats, has_chats
from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.recording import Samples
from tests.refusals import unrefused

Image = pytest.importorskip("PIL.Image")

PICTURE = 9


class Template:
    """A tokenizer whose template makes a token of each letter, and one of each picture."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: object) -> list[int]:
        ids = []
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                ids += [PICTURE] if part["type"] == "image" else [10 + ord(x) for x in part["text"]]
        return ids


class Patches:
    """A processor that makes a patch of each pixel, four of which are a token."""

    merge_size = 2

    def get_number_of_image_patches(self, height: int, width: int) -> int:
        return height * width


def url(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (1, 2, 3)).save(file, format="PNG")
    return f"data:image/PNG;base64,{base64.b64encode(file.getvalue()).decode()}"


def chat(*parts: str, **more: Any) -> dict[str, Any]:
    content = [
        {"type": "image_url", "image_url": {"url": part}}
        if ":" in part
        else {"type": "text", "text": part}
        for part in parts
    ]
    system = {"role": "system", "content": "S"}
    return {"messages": [system, {"role": "user", "content": content}], **more}


def loaded(*samples: Any, processor: Any = None, context: int | None = None) -> TokenPrompts:
    chats = PictureChats(tokenizer=Template(), picture_token=PICTURE, processor=processor)
    generation = TextOptions(max_new_tokens=4).generation("torch")
    prompts = generation.prompts(Samples(samples), None, None, context, chats=chats)
    prompts.load(range(len(samples)))
    return prompts


def letters(text: str) -> list[int]:
    return [10 + ord(letter) for letter in text]


def test_a_picture_is_as_many_tokens_as_its_size_makes() -> None:
    """And one token for who makes patches itself; its parts count where a prompt must fit."""
    prompts = loaded(chat("ab", url(4, 2), "c", url(2, 2)), processor=Patches())
    assert prompts[0] == [*letters("Sab"), PICTURE, PICTURE, *letters("c"), PICTURE]
    assert loaded(chat("ab", url(4, 2)))[0] == [*letters("Sab"), PICTURE]
    loaded(chat("a", url(8, 8)), processor=Patches(), context=22)
    with pytest.raises(RunError, match="has 18 tokens, and max_new_tokens = 4 more do not fit"):
        loaded(chat("a", url(8, 8)), processor=Patches(), context=21)
    assert has_chats(Samples([chat("a")]))
    assert not any(has_chats(Samples(one)) for one in ([], ["a"], [[1, 2]]))


def test_pictures_are_kept_as_they_came_while_a_sample_is_loaded() -> None:
    prompts = loaded(chat("a", url(4, 2), url(6, 2)), chat("b", url(2, 2)))
    assert prompts.chats is not None

    assert [picture.size for picture in prompts.chats.pictures(0)] == [(4, 2), (6, 2)]
    assert prompts.chats.pictures(1)[0].getpixel((1, 1)) == (1, 2, 3)
    prompts.unload([0])
    with pytest.raises(KeyError):
        prompts.chats.pictures(0)


def test_content_other_than_text_and_pictures_of_the_data_set_is_refused() -> None:
    audio = [{"type": "input_audio"}]
    rows = [
        (chat("a", "https://example.org/a.png"), "nothing is downloaded; use data URLs"),
        (chat("a", "file:///etc/passwd"), "nothing is downloaded"),
        (chat("a", "data:image/PNG;base64,%%%"), "sample 0 of the data set .*is not base64"),
        (chat("a", "data:image/PNG;base64,AAAA"), "has a picture that is damaged"),
        (chat("a", response_format={}), "has response_format, which this engine"),
        (
            {"messages": [{"role": "user", "content": audio}]},
            "a part of type 'input_audio'; only text and pictures are",
        ),
    ]
    assert unrefused(lambda sample: loaded(sample, processor=Patches()), RunError, rows) == []
    contents: list[Any] = [5, {"a": 1}, [1], [{"type": "text"}], [{"type": "image_url"}]]
    contents += [[{"type": "image_url", "image_url": "data:image/png"}]]
    messages: list[Any] = [None, 5, [1], ["a"], {"a": 1}, *([{"content": c}] for c in contents)]
    broken = [({"messages": each}, "sample 0 .* is not a chat of text and") for each in messages]
    assert unrefused(lambda sample: loaded(sample, processor=Patches()), RunError, broken) == []


def test_a_template_without_places_for_pictures_or_that_fails_is_refused(tmp_path: Path) -> None:
    class Answering(Template):
        def __init__(self, answer: Callable[[], list[int]]) -> None:
            self.answer = answer

        def apply_chat_template(self, *_: object, **__: object) -> list[int]:
            return self.answer()

    def fail() -> list[int]:
        raise ValueError("no chat template is set")

    def tokens(answer: Callable[[], list[int]], *parts: str) -> None:
        chats = PictureChats(tokenizer=Answering(answer), picture_token=PICTURE)
        chats.tokens(0, chat(*parts))

    rows = [
        (lambda: [1, 2], "a", url(2, 2), "writes the picture token 9 0 times"),
        (fail, "a", "does not fit the model's chat template: no chat template is"),
    ]
    assert unrefused(tokens, RunError, rows) == []
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(RunError, match=r"config\.json: names no image_token_id"):
        picture_chats("torch", tmp_path, Template())
