"""The bodies of requests, made and checked while LoadGen does not count the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.engines.openai.client import encode
from pytest_mlperf.engines.prompts import Prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One sample as it is sent.

    Attributes:
        fields: The field of the request that has it.
        tokens: How many tokens the server must count in it; None where that is not known.
    """

    fields: Mapping[str, Any]
    tokens: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """A request that is ready to be sent.

    Attributes:
        data: JSON.
        prompt_tokens: How many tokens the server must count in its prompt, or None.
    """

    data: bytes
    prompt_tokens: int | None


class Texts:
    """Token ids as text that a server's tokenizer turns into the same ids."""

    def __init__(self, tokenizer: Any) -> None:
        """Decode and check with the model's own tokenizer."""
        self._tokenizer = tokenizer
        self._added = list(tokenizer("")["input_ids"])

    def of(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return a prompt's text, and whether it gives the same ids again.

        What the tokenizer puts before every text is left out, because the server's does it too.
        """
        added = len(self._added)
        begin = added if list(ids[:added]) == self._added else 0
        for start in sorted({begin, 0}, reverse=True):
            text = str(
                self._tokenizer.decode(
                    list(ids[start:]), skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            )
            if list(self._tokenizer(text)["input_ids"]) == list(ids):
                return text, True
        return text, False


class Bodies:
    """Prompts of the loaded samples as requests, by data set index."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        chat: bool,
        as_they_are: bool,
        prompts: Prompts,
        texts: Callable[[], Texts],
    ) -> None:
        """Keep where prompts come from.

        Args:
            dataset: Gives text, or lists of token ids.
            chat: Text is sent as a user's message.
            as_they_are: The data set's text is sent unchanged.
            prompts: Makes checked token ids of samples otherwise.
            texts: Makes text of token ids; called where a server takes nothing else.
        """
        self._dataset = dataset
        self._chat = chat
        self._as_they_are = as_they_are
        self._prompts = prompts
        self._texts = texts
        self._bodies: dict[int, Body] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def __getitem__(self, index: int) -> Body:
        return self._bodies[index]

    def prompt(self, index: int, form: str) -> Prompt:
        """Return a sample as "tokens" or as "text", for a question outside a run."""
        return self._made(index, form)[0]

    def load(self, indices: Sequence[int], form: str, fields: Mapping[str, Any]) -> None:
        """Make requests of samples, beside those that are loaded.

        Raises:
            RunError: A sample is no prompt for this model, or some cannot be sent as text.
        """
        new = [index for index in indices if index not in self._bodies]
        rest = b"," + encode(fields)[1:]
        changed = []
        for index in new:
            prompt, same = self._made(index, form)
            if not same:
                changed.append(index)
            data = encode(prompt.fields)[:-1] + rest
            self._bodies[index] = Body(data=data, prompt_tokens=prompt.tokens)
        if changed:
            raise RunError(
                "engine",
                f"{len(changed)} of {len(new)} prompts are not the same token ids after they were "
                f"made text for this server and tokenised again (the first is sample {changed[0]}"
                "); use a server that takes prompts of token ids, as vLLM, or a data set of text",
            )

    def unload(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        for index in indices:
            self._bodies.pop(index, None)

    def _made(self, index: int, form: str) -> tuple[Prompt, bool]:
        """Return a sample's prompt, and whether it is still the same token ids."""
        if self._as_they_are:
            return self._text(_checked(index, self._dataset.input(index)), None), True
        self._prompts.load([index])
        ids = self._prompts[index]
        self._prompts.unload([index])
        if form == "tokens":
            return Prompt(fields={"prompt": ids}, tokens=len(ids)), True
        text, same = self._texts().of(ids)
        return self._text(text, len(ids) if same else None), same

    def _text(self, text: str, tokens: int | None) -> Prompt:
        if self._chat:  # the chat's template adds tokens that nobody here knows
            return Prompt(fields={"messages": [{"role": "user", "content": text}]}, tokens=None)
        return Prompt(fields={"prompt": text}, tokens=tokens)


def _checked(index: int, given: Any) -> str:
    if isinstance(given, str) and given:
        return given
    what = "is an empty prompt; leave it out of the data set"
    if not isinstance(given, str):
        what = f"is {type(given).__name__}, but the first one is text; a data set gives one of both"
    raise RunError("engine", f"sample {index} of the data set {what}")
