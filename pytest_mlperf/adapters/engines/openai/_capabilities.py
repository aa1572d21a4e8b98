"""Detect a server's capabilities by test requests, before any measurement."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.llm.model_folder import MAIN_TOKENIZER_FILES
from pytest_mlperf.adapters.engines.openai._client import (
    GET_TIMEOUT_SECONDS,
    LENGTH_FIELDS,
    NO_CONNECTION,
    Client,
    Prompt,
    encode,
    length_field,
)
from pytest_mlperf.adapters.engines.openai._events import Failed, StreamedAnswer, prompt_logprobs
from pytest_mlperf.adapters.engines.openai._salt import Count
from pytest_mlperf.adapters.engines.serving import parse_json
from pytest_mlperf.extension import page_samples, read_server, some

CACHE = "vllm:cache_config_info"

UNRELATED = frozenset({401, 403, 408, 429, 502, 503, 504})
"""Status codes of failures whatever fields a request has."""

INVALID = frozenset({400, 422})
"""Status codes of requests with a field that the server does not take."""

METRICS_PATHS = ("/metrics", "/prometheus/metrics", "/v1/metrics")
"""Paths of servers' metrics; trtllm-serve's first one is JSON, the last one is NIM's."""

VERSION_PAGES = {"/version": "version", "/v1/version": "release"}
"""Pages with a server's version, and the key that has it; the last one is NIM's."""

PAGE_TIMEOUT_SECONDS = 10.0
"""Maximum time for a page that is not essential for a run."""

ABOUT_MODEL = re.compile(
    r"(?i)\bmodels?\b[^.;]{0,120}\b(not found|not exist|unknown|not (available|loaded|served))"
    r"|\b(unknown|no such|invalid|not a valid) model|model_not_found"
)
"""Refusals of a model's name, as vLLM, Ollama, LiteLLM and OpenAI word them."""

ABOUT_LENGTH = re.compile(
    r"(?i)(context|sequence|prompt|input|model).(len|window|size)|too (long|many tokens)|max_len"
)

UNCOUNTED = (
    "the server's streams have neither usage nor token ids, so tokens cannot be counted; set "
    'count_tokens = "reference" to count them with a tokenizer, or use a server that supports '
    "stream_options.include_usage"
)

NO_PAGE = frozenset({404, 405, 501})
"""Status codes of servers without a list of models."""

STABLE_LABELS = (
    *("block_size", "cache_dtype", "cpu_offload_gb", "enable_prefix_caching"),
    *("gpu_memory_utilization", "kv_cache_dtype_skip_layers", "num_gpu_blocks_override"),
    *("prefix_caching_hash_algo", "sliding_window", "swap_space"),
)
"""Labels of vLLM's metric that describe its set-up; others differ from start to start."""


async def model_names(
    client: Client, served: str | None, model: str | None, others: Sequence[str]
) -> tuple[str, ...]:
    """Return the names under which the model may answer, the one to send in requests first.

    The first is `served`; if that is None, the path `model` if listed, else the server's only
    listed name, else the path. Then come `others` and the server's other names of the first.
    """
    listed: dict[str, list[str]] = {}
    limit_s = GET_TIMEOUT_SECONDS if served is None else PAGE_TIMEOUT_SECONDS
    try:
        listed = _names(await client.get(f"{client.api}/models", limit_s))
    except Failed as failure:
        has_none = failure.status is not None and (model is not None or failure.status in NO_PAGE)
        if served is None and not has_none:
            advice = _advice(client, failure) or (
                "; set served_model to the model's name, so that the list is not needed"
            )
            raise _unreachable(client, failure) or engine_error(
                f"the server at {client.url} gives no list of its models ({failure}){advice}",
            ) from None
    name = served
    if name is None and model is not None and (model in listed or len(listed) != 1):
        name = model
    if name is None and len(listed) != 1:
        names = client.mask(some(sorted(listed)))
        has = f"lists {names}" if listed else f"lists no model at {client.api}/models"
        raise engine_error(f"the server {has}; set served_model to the name of the model")
    name = name or next(iter(listed))
    alike = [n for id_, more in listed.items() if name in (id_, *more) for n in (id_, *more)]
    return tuple(dict.fromkeys((name, *others, *alike)))


def _names(page: bytes) -> dict[str, list[str]]:
    try:
        return {
            str(entry["id"]): [
                name
                for name in (entry.get("root"), *(entry.get("aliases") or ()))
                if isinstance(name, str)
            ]
            for entry in parse_json(page).get("data") or []
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


async def metrics_page(client: Client) -> tuple[str | None, bytes]:
    """Return path and content of a server's Prometheus page; (None, b"") if it has none."""
    for path in METRICS_PATHS:
        page = await _page(client, path)
        if is_page(page):
            return path, page
    return None, b""


async def server_facts(client: Client, metrics: bytes) -> Mapping[str, str]:
    facts: dict[str, str] = {}
    for path, key in VERSION_PAGES.items():
        with contextlib.suppress(ValueError, AttributeError):
            version = parse_json(await _page(client, path) or b"{}").get(key)
            if isinstance(version, str):
                facts.setdefault("server.version", client.mask(version))
    if setup := next(page_samples(metrics, {CACHE}), None):
        labels = setup.labels
        facts |= {
            f"server.{name}": client.mask(labels[name]) for name in STABLE_LABELS if name in labels
        }
    return facts


async def accepted_by_server(client: Client, path: str | None) -> int | None:
    """Return how many draft tokens a server has accepted since its start; None if not reported."""
    accepted = read_server(await _page(client, path or METRICS_PATHS[0])).get("accepted")
    return None if accepted is None else round(accepted)


async def _page(client: Client, path: str) -> bytes:
    """Return the body of the server's response to GET `path`; b"" if there is none."""
    try:
        return await client.get(path, PAGE_TIMEOUT_SECONDS)
    except Failed:
        return b""


def has_tokenizer(folder: Path | None) -> bool:
    return folder is not None and any((folder / name).is_file() for name in MAIN_TOKENIZER_FILES)


def has_weights(folder: Path | None) -> bool:
    return folder is not None and any(folder.glob("*.safetensors*"))


PROBE_TOKENS = 8
"""Tokens of the answers to probes; one or two may have no text yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Hold a server's capabilities: the accepted form of prompts, and further request fields.

    Streams contain token `ids`, or `usage`, or both. `template` is the number of tokens that the
    server adds to each prompt, None if unknown. `model` and `build` are the server's names for its
    model and its configuration (system fingerprint), or "".
    """

    form: str
    fields: Mapping[str, Any]
    ids: bool
    usage: bool
    template: int | None = None
    model: str = ""
    build: str = ""


Forms = Mapping[str, Callable[[], Prompt]]
"""Forms of prompts, the preferred one first; each returns the first sample in this form."""


async def probe(
    client: Client,
    forms: Forms,
    always: Mapping[str, Any],
    generation: Generation,
    models: Sequence[str] = (),
    count: Count | None = None,
    *,
    recounts: bool = False,
) -> Capabilities:
    """Detect a server's capabilities with a few requests for a few tokens each.

    All requests have the fields `always`. `forms` builds a prompt for each form to try. `models`
    are the model names to accept in answers, the requested one first; () accepts any. `count`
    counts the tokens of texts; None without a tokenizer. With `recounts`, answers need no token
    count.
    """
    few = min(PROBE_TOKENS, generation.max_new_tokens)
    form, prompt, length = await _form(client, forms, always, few)
    fields = {**always, length: few}

    refusals: dict[str, Failed] = {}
    takes = functools.partial(_answer, client, refusals, {**prompt.fields, **fields})
    options = {"include_usage": True}
    taken: dict[str, Any] = {}
    if await takes("stream_options", options):
        taken["stream_options"] = options
    if (answer := await takes("return_token_ids", True)) and answer.n_ids:
        taken["return_token_ids"] = True
    if fewest := generation.min_new_tokens:
        if await takes("min_tokens", min(few, fewest)):
            taken["min_tokens"] = fewest
        elif fewest > 1:  # 1 only keeps answers from being empty, which is checked
            raise _unsupported("min_new_tokens", fewest, "min_tokens", refusals["min_tokens"])
    if generation.ignore_eos:
        if not await takes("ignore_eos", True):
            raise _unsupported("ignore_eos", "true", "ignore_eos", refusals["ignore_eos"])
        taken["ignore_eos"] = True
    fields = {**always, length: generation.max_new_tokens, **taken}
    answer = await _ask_with_all_fields(client, prompt, fields, few)
    if answer.tokens is None and not recounts:
        raise engine_error(UNCOUNTED)
    check_model(client, answer, models)
    template = _added_tokens(answer, prompt, form, count)
    return Capabilities(
        form=form,
        fields=fields,
        ids=answer.n_ids > 0,
        usage=answer.completion_tokens is not None,
        template=template,
        model=client.mask(answer.model),
        build=client.mask(answer.build),
    )


async def _answer(
    client: Client, refusals: dict[str, Failed], fields: Mapping[str, Any], name: str, value: Any
) -> StreamedAnswer | None:
    """Send `fields` with `name` = `value`; return the answer, or None and set `refusals[name]`."""
    try:
        return await client.ask(encode({**fields, name: value}))
    except Failed as failure:
        if error := _unrelated(client, failure):
            raise error from None
        refusals[name] = failure
        return None


async def check_echo(client: Client, prompt: Prompt, fields: Mapping[str, Any]) -> None:
    """Raise RunError if a server does not return the log-probabilities of a prompt's tokens."""
    try:
        answer = await client.ask(encode({**prompt.fields, **fields}))
        prompt_logprobs(answer, prompt.ids)
    except Failed as failure:
        raise engine_error(
            f"prompt_logprobs = true, but the server at {client.url} does not give them "
            f"({failure}); use a server that answers echo = true with logprobs in /v1/completions, "
            "such as vLLM, or use engine torch or vllm",
        ) from None


async def _form(
    client: Client, forms: Forms, fixed_fields: Mapping[str, Any], max_tokens: int
) -> tuple[str, Prompt, str]:
    """Return (form, prompt, answer-length field) of the first of `forms` the server accepts."""
    failure: Failed | None = None
    for form, make in forms.items():
        prompt = make()
        try:
            return (
                form,
                prompt,
                await _length_field(client, {**prompt.fields, **fixed_fields}, max_tokens),
            )
        except Failed as error:
            failure = error
            if error.status is None:
                break
    assert failure is not None
    ways = " or as ".join(forms)
    raise _unrelated(client, failure) or engine_error(
        f"the server at {client.url} does not accept a prompt as {ways}: {failure}"
        + _advice(client, failure, str(fixed_fields["model"])),
    )


async def _length_field(client: Client, fields: Mapping[str, Any], answer_tokens: int) -> str:
    """Return the request field in which the server accepts the answer's length, or raise Failed."""
    first, second = LENGTH_FIELDS
    try:
        await client.ask(encode({**fields, first: answer_tokens}))
    except Failed as failure:
        if "messages" not in fields or failure.status not in INVALID:
            raise
        try:
            await client.ask(encode({**fields, second: answer_tokens}))
        except Failed:
            raise failure from None
        return second
    return first


def _unrelated(client: Client, failure: Failed) -> RunError | None:
    """Return the error if a request failed for other reasons than its fields, else None."""
    if failure.status in UNRELATED or failure.kind == "time-out":
        text = f"the server at {client.url} failed a request before the run: {failure}"
        return engine_error(text + _advice(client, failure))
    return _unreachable(client, failure)


def _unreachable(client: Client, failure: Failed) -> RunError | None:
    if failure.kind != NO_CONNECTION:
        return None
    advice = "start it, or let the suite do so with serve"
    if client.url.startswith("https:"):
        advice = (
            "start it; if it has no TLS, use http:// in url; if its certificate is from your own "
            "authority, set the environment variable SSL_CERT_FILE to that authority's file"
        )
    return engine_error(f"no server answers at {client.url} ({failure}); {advice}")


def _advice(client: Client, failure: Failed, model: str = "") -> str:
    """Return advice on a failed request if its status or text shows the cause, else ""."""
    status, causes = failure.status or 0, {}
    if 300 <= status < 400:
        return "; redirects are not followed: set url to where the server itself answers"
    if status in (401, 403) and client.sends:
        return f"; it was sent {client.sends}: check the value, and the name of the header"
    if status in (401, 403):
        name = "the name of the environment variable that holds its key"
        return f"; set api_key_env to {name}, or headers_env if the key has another header"
    if model and 400 <= status < 500 and status not in UNRELATED:
        asked = f'set served_model to the name of the model; the request had "{client.mask(model)}"'
        causes = {asked: ABOUT_MODEL, "shorten the prompts or max_new_tokens": ABOUT_LENGTH}
        path = f"{client.path} is not a path of this server: check url and api"
        causes |= {path: re.compile("")} if status in (404, 405) else {}
    return next((f"; {text}" for text, cause in causes.items() if cause.search(failure.detail)), "")


def _unsupported(option: str, value: object, field: str, failure: Failed) -> RunError:
    return engine_error(
        f"{option} = {value}, but the server does not take the field {field} ({failure}); leave "
        f"{option} out, or use a server that takes it, such as vLLM",
    )


async def _ask_with_all_fields(
    client: Client, prompt: Prompt, fields: Mapping[str, Any], max_tokens: int
) -> StreamedAnswer:
    """Send one request with all fields of a run, but at most `max_tokens`; return its answer."""
    request = {**prompt.fields, **fields, length_field(fields): max_tokens}
    if "min_tokens" in fields:
        request["min_tokens"] = min(max_tokens, fields["min_tokens"])
    try:
        return await client.ask(encode(request))
    except Failed as failure:
        raise _unrelated(client, failure) or engine_error(
            "the server accepts each field of a request alone, but not all together "
            f"({', '.join(sorted(fields))}): {failure}; leave out an option that sends one of them",
        ) from None


def _added_tokens(
    answer: StreamedAnswer, prompt: Prompt, form: str, count: Count | None
) -> int | None:
    """Check a prompt's token count; return how many tokens the server adds, or None if unknown."""
    check_prompt(answer, prompt.tokens, form)
    counted, least = answer.prompt_tokens, prompt.fewest
    if counted is None or prompt.tokens is not None:
        return None
    if prompt.text and count:
        least = count([prompt.text])[0]
    check_prompt(answer, max(counted, least), form)
    return counted - least if count else None


def check_model(client: Client, answer: StreamedAnswer, models: Sequence[str]) -> None:
    if models and not answer.is_of(models):
        asked, name = client.mask(models[0]), client.mask(answer.model)
        raise engine_error(
            f'model "{asked}" was requested, but "{name}" answered; set served_model to the '
            "model's name on this server, or url to the server that has it; if both names mean "
            f'one model, set served_model_answers = ["{name}"]'
        )


def check_prompt(answer: StreamedAnswer, expected: int | None, form: str) -> None:
    counted = answer.prompt_tokens
    if expected is None or counted is None or counted == expected:
        return
    cause = "the server cuts prompts or adds tokens to them; switch this off on the server"
    if form != "tokens":
        cause = "the server cuts prompts, has another tokenizer than workload.model, or adds other "
        cause += "special tokens; set workload.model to the folder of the served model"
    raise engine_error(
        f"the server counts {counted} tokens in a prompt of {expected}, sent as {form}: {cause}",
    )


def is_page(page: bytes) -> bool:
    """Return whether a page is in Prometheus' format."""
    return page.startswith((b"# HELP ", b"# TYPE ")) or b"\n# TYPE " in page
