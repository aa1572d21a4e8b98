"""What a server can do, found by asking it before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.openai.bodies import Prompt
from pytest_mlperf.engines.openai.client import Client, encode, unreachable
from pytest_mlperf.engines.openai.events import Answer
from pytest_mlperf.engines.openai.failures import Failed

PROBE_TOKENS = 8
"""Tokens of the answers to these questions; one or two may have no text yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What is asked of a server.

    Attributes:
        forms: What a prompt can be sent as, "tokens" or "text", the preferred one first, with what
            makes the first sample's prompt of that form.
        fields: The fields that every request has.
        max_new_tokens: Most tokens of an answer.
        min_new_tokens: Fewest tokens of an answer.
        ignore_eos: Every answer gets exactly `max_new_tokens`.
    """

    forms: Mapping[str, Callable[[], Prompt]]
    fields: Mapping[str, Any]
    max_new_tokens: int
    min_new_tokens: int
    ignore_eos: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a server was found to do.

    Attributes:
        form: How prompts are sent: "tokens" or "text".
        fields: What every request of a run has besides its prompt.
        ids: Its streams carry token ids.
        usage: Its streams carry usage.
        min_tokens: It takes the fewest tokens of an answer.
    """

    form: str
    fields: Mapping[str, Any]
    ids: bool
    usage: bool
    min_tokens: bool


async def probe(client: Client, wishes: Wishes) -> Capabilities:
    """Find out what a server takes, with a few requests of a few tokens.

    Raises:
        RunError: It does not answer, refuses what the suite asks for, counts no tokens, or reads
            the prompt as something else.
    """
    few = min(PROBE_TOKENS, wishes.max_new_tokens)
    fields = {**wishes.fields, "max_tokens": few}
    form, prompt = await _form(client, wishes, fields)

    async def takes(field: str, value: Any) -> Answer | Failed:
        try:
            return await client.ask(encode({**prompt.fields, **fields, field: value}))
        except Failed as failure:
            return failure

    options = {"include_usage": True}
    taken: dict[str, Any] = {}
    if isinstance(await takes("stream_options", options), Answer):
        taken["stream_options"] = options
    answer = await takes("return_token_ids", True)
    if isinstance(answer, Answer) and answer.n_ids:
        taken["return_token_ids"] = True
    if wishes.min_new_tokens:
        fewest = min(few, wishes.min_new_tokens)
        answer = await takes("min_tokens", fewest)
        if isinstance(answer, Answer):
            taken["min_tokens"] = wishes.min_new_tokens
        elif wishes.min_new_tokens > 1:  # 1 only keeps answers from being empty, which is checked
            raise _unsupported("min_new_tokens", wishes.min_new_tokens, "min_tokens", answer)
    if wishes.ignore_eos:
        answer = await takes("ignore_eos", True)
        if isinstance(answer, Failed):
            raise _unsupported("ignore_eos", "true", "ignore_eos", answer)
        taken["ignore_eos"] = True
    fields = {**wishes.fields, "max_tokens": wishes.max_new_tokens, **taken}
    answer = await _together(client, prompt, fields, few)
    check_prompt(answer, prompt.tokens, form)
    return Capabilities(
        form=form,
        fields=fields,
        ids=answer.n_ids > 0,
        usage=answer.completion_tokens is not None,
        min_tokens="min_tokens" in fields,
    )


async def _form(client: Client, wishes: Wishes, fields: Mapping[str, Any]) -> tuple[str, Prompt]:
    """Return the first way to send a prompt that the server takes, and the first prompt so."""
    failure: Failed | None = None
    for form, make in wishes.forms.items():
        prompt = make()
        try:
            await client.ask(encode({**prompt.fields, **fields}))
        except Failed as error:
            failure = error
            if error.status is None:
                break
        else:
            return form, prompt
    assert failure is not None
    if failure.kind == "no connection":
        raise unreachable(client.url, failure)
    ways = " nor ".join(wishes.forms)
    raise RunError(
        "engine",
        f"the server at {client.url} does not answer a prompt as {ways}: {failure}"
        + _advice(failure.status, str(fields["model"])),
    )


def _advice(status: int | None, model: str) -> str:
    if status in (401, 403):
        return "; set api_key_env to the name of the environment variable that holds its key"
    if status in (400, 404):
        return f'; the model was asked for as "{model}": see served_model'
    return ""


def _unsupported(option: str, value: object, field: str, failure: Failed) -> RunError:
    return RunError(
        "engine",
        f"{option} = {value}, but the server does not take {field} ({failure}); leave the option "
        "out, or use a server that has it, as vLLM",
    )


async def _together(client: Client, prompt: Prompt, fields: Mapping[str, Any], few: int) -> Answer:
    """Ask once with all fields of a run's requests, and return an answer that is counted."""
    asked = {**prompt.fields, **fields, "max_tokens": few}
    if "min_tokens" in fields:
        asked["min_tokens"] = min(few, fields["min_tokens"])
    try:
        answer = await client.ask(encode(asked))
    except Failed as failure:
        raise RunError(
            "engine",
            "the server takes the fields of a request one by one, but not together "
            f"({', '.join(sorted(fields))}): {failure}",
        ) from None
    if answer.tokens is None:
        raise RunError(
            "engine",
            "the server's streams have neither usage nor token ids, so that nobody can count "
            "tokens (the pieces of text are not tokens); it needs stream_options.include_usage, "
            "which vLLM, SGLang and TensorRT-LLM have, or return_token_ids, which vLLM has: "
            "update it, or use another one",
        )
    return answer


def check_prompt(answer: Answer, expected: int | None, form: str) -> None:
    """Refuse a server that reads another prompt than was sent.

    Raises:
        RunError: It counts other tokens.
    """
    counted = answer.prompt_tokens
    if expected is None or counted is None or counted == expected:
        return
    cause = (
        "it cuts prompts or adds to them"
        if form == "tokens"
        else "it cuts prompts, or its tokenizer is not that of workload.model or adds other "
        "special tokens"
    )
    raise RunError(
        "engine",
        f"the server counts {counted} tokens in a prompt of {expected}, sent as {form}: {cause}",
    )
