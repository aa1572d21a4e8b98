"""Measure an OpenAI-compatible server that is already running, or is started for the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from pytest_mlperf import Dataset, RunError, Sink, SuiteError
from pytest_mlperf.adapters.connections import load_httptools
from pytest_mlperf.adapters.engines import (
    StackedEngine,
    count_rule,
    engine_error,
    one_of,
    refuse_conflicts,
    require_module,
)
from pytest_mlperf.adapters.engines.llm.generation import (
    DRAWING,
    Generation,
    TextOptions,
    refuse_times,
)
from pytest_mlperf.adapters.engines.llm.model_folder import (
    Config,
    find_model,
    load_tokenizer,
    read_config,
    weights_fact,
)
from pytest_mlperf.adapters.engines.llm.streaming import Streams
from pytest_mlperf.adapters.engines.llm.tools import offers_tools
from pytest_mlperf.adapters.engines.openai import _capabilities
from pytest_mlperf.adapters.engines.openai._address import (
    DEFAULT_KEY,
    PATHS,
    Address,
    Secrets,
    request_headers,
)
from pytest_mlperf.adapters.engines.openai._client import Bodies, Client, max_tokens_fact
from pytest_mlperf.adapters.engines.openai._conversations import TurnBodies, is_header
from pytest_mlperf.adapters.engines.openai._count import ReferenceCount
from pytest_mlperf.adapters.engines.openai._null_client import NullClient, drive
from pytest_mlperf.adapters.engines.openai._salt import SALT_WORDS
from pytest_mlperf.adapters.engines.openai._traffic import Checks, Traffic, allow_files
from pytest_mlperf.adapters.engines.serving import Server, require_listening
from pytest_mlperf.extension import REPLICA_NUMBER, require_options

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

PROMPT_KINDS = ("auto", "tokens", "text")
WEIGHT_SOURCES = ("checkpoint", "dummy")
COUNTS = ("server", "reference")

ECHO = {"echo": True, "logprobs": 1}
"""Fields with which /v1/completions returns a prompt before its answer, with log-probabilities."""

ECHOED = {("completions", "auto"), ("completions", "tokens")}
"""Values of (api, prompts) with which a server echoes the token ids of the prompt unchanged."""

RESERVED_FIELDS = frozenset(
    {
        *("model", "prompt", "messages", "stream", "stream_options", "temperature", "n", "best_of"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "return_token_ids"),
        *("echo", "do_sample", "use_beam_search"),
    }
)
"""Fields of a request that the engine sets, or that would change token counts."""


@dataclass(frozen=True, kw_only=True)
class OpenAiOptions(TextOptions):
    """Options of engine openai.

    Attributes:
        url: Address of a running server, as "http://127.0.0.1:8000" or "unix:///run/server.sock".
        serve: Command that starts a server; {model} and {port} are replaced.
        env: Environment variables of the started server.
        health: Path for which the started server returns 200 once it is ready.
        start_timeout: Maximum time until the started server is ready [s].
        api: "completions", or "chat": each prompt is a user's message, to which the server adds its
            chat template.
        served_model: Name of the model on the server; None asks the server.
        served_model_answers: Further model names to accept in answers, besides the root and aliases
            that the server lists.
        prompts: "tokens" sends token ids, "text" sends text. "auto" sends text of the data set
            unchanged. It sends token ids as they are if the server accepts them, else as text that
            is tokenised to the same ids.
        concurrency: Maximum requests in flight. None is 900, because each request needs a
            connection and many servers can open only 1,024 files.
        clients: Number of client processes that share the requests. None is one, and more if a run
            shows that one client limits the result.
        request_timeout: Maximum time without data on a stream that has begun, or on all streams
            [s].
        api_key_env: Name of the environment variable that holds the server's API key.
        headers_env: Names of environment variables with secret header values, by header, e.g.
            {"api-key" = "AZURE_KEY"}.
        extra: Further fields of each request.
        salt: Whether each run puts ten random words at the beginning of prompts, so that the
            server's prefix cache has no hits. They replace words of synthetic prompts, and precede
            other text. Each conversation in flight has its own random words, before the text of the
            first user message. Accuracy runs, official data sets and data sets with `repeat` send
            prompts unchanged.
        session_header: Header that names the conversation to a router, e.g. "X-Session-ID"; None
            sends none.
        count_tokens: "server" uses the server's counts. With "reference", a tokenizer counts the
            output tokens of a curve after each measurement window, as in MLPerf Endpoints.
        tokenizer: Folder of that tokenizer; None is that of the workload's model.
        weights: "checkpoint", or "dummy" if the server was started with random weights.
    """

    client_counts: ClassVar[bool] = False
    """Whether another client counts tokens by `tokenizer`."""

    url: str | None = None
    serve: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"
    start_timeout: float = 600
    api: str = "completions"
    served_model: str | None = None
    served_model_answers: Sequence[str] = ()
    prompts: str = "auto"
    concurrency: int | None = None
    clients: int | None = None
    request_timeout: float = 600
    api_key_env: str | None = DEFAULT_KEY
    headers_env: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    salt: bool = True
    session_header: str | None = None
    count_tokens: str = "server"
    tokenizer: str | None = None
    weights: str = "checkpoint"

    @property
    def processes(self) -> int:
        return self.clients or 1

    def check(self) -> None:
        timeout_s, header = self.request_timeout, self.session_header
        is_header_free = header is None or is_header(header)
        free = 'a valid name of a header that the engine does not use itself, e.g. "X-Session-ID"'
        rules = (
            one_of("api", self.api, tuple(PATHS)),
            one_of("prompts", self.prompts, PROMPT_KINDS),
            one_of("weights", self.weights, WEIGHT_SOURCES),
            one_of("count_tokens", self.count_tokens, COUNTS),
            count_rule("concurrency", self.concurrency, "requests"),
            count_rule("clients", self.clients, "processes"),
            ("request_timeout", timeout_s, timeout_s > 0, "a number of seconds above 0"),
            ("session_header", header, is_header_free, free),
        )
        require_options("engine openai", rules)
        refuse_conflicts("openai", self._conflicts())

    def _conflicts(self) -> Iterator[Sequence[Any]]:
        yield (
            self.prompt_logprobs and (self.api, self.prompts) not in ECHOED,
            "prompt_logprobs = true sends token ids to /v1/completions, which gives their "
            'log-probabilities: set api = "completions", and leave prompts out',
            *("prompt_logprobs", "api", "prompts"),
        )
        yield (
            self.api == "chat" and self.prompts == "tokens",
            'prompts = "tokens" with api = "chat": a chat takes text only; set api = "completions"',
            *("prompts", "api"),
        )
        ours = RESERVED_FIELDS | {name for name in DRAWING if self.is_drawn}
        taken = ", ".join(sorted(ours & set(self.extra)))
        text = f"extra has {taken}, which the engine sets itself; use the engine's options, e.g. "
        yield taken, f"{text}max_new_tokens", "extra"
        text = 'tokenizer needs count_tokens = "reference"; set it, or leave tokenizer out'
        applies = self.tokenizer is not None and self.count_tokens != "reference"
        yield applies and not self.client_counts, text, "tokenizer", "count_tokens"
        both = "" if self.url is None else ", not both"
        yield (
            (self.url is None) == (self.serve is None),
            "set either url (of a running server) or serve (a command that starts one)" + both,
            *("url", "serve"),
        )
        text = "env needs serve, as it applies to a server that serve starts; leave env out"
        yield self.serve is None and self.env, text, "env", "serve"
        text = (
            f"clients = {self.clients} needs the url of a running server, as each client would "
            "start its own; set url, or leave clients out"
        )
        yield self.processes > 1 and self.url is None, text, "clients", "serve"
        text = f"concurrency = {self.concurrency} must be a multiple of clients = {self.clients}"
        yield (self.concurrency or 0) % self.processes, text, "concurrency", "clients"
        variables = [*self.headers_env.values(), self.api_key_env or DEFAULT_KEY]
        text = "api_key_env and headers_env need names of environment variables, not their values"
        yield not all(map(str.isidentifier, variables)), text, "api_key_env", "headers_env"
        names = [name.lower() for name in (*self.headers_env, self.session_header or "")]
        implied = "authorization" if self.api_key_env in (None, DEFAULT_KEY) else ""
        bad = [
            n for n in self.headers_env if names.count(n.lower()) > 1 or not is_header(n, implied)
        ]
        text = f'headers_env has "{"".join(bad[:1])}", which is no valid name of a header, or a '
        text += "header that the engine sets itself; remove it"
        if bad and names.count(bad[0].lower()) > 1:
            text = f'the header "{bad[0]}" is set twice in headers_env or session_header; keep one'
        yield bad, text, "headers_env"


class PromptSource:
    """Convert a data set's inputs to requests; add facts about salt to the fingerprint."""

    def __init__(
        self,
        dataset: Dataset,
        folder: Path | None,
        options: OpenAiOptions,
        generation: Generation,
        config: Config,
        facts: dict[str, str],
    ) -> None:
        if not len(dataset):
            raise engine_error("the data set has no samples; set dataset to one that has some")
        self._folder, self._facts, self._is_chat = folder, facts, options.api == "chat"
        first = dataset.input(0)
        is_text, has_turns = isinstance(first, str), isinstance(first, Mapping)
        uncut = generation.max_prompt_tokens is None
        if has_turns and not self._is_chat:
            raise engine_error('the data set has conversations: set api = "chat"')
        if has_turns and not uncut:
            raise engine_error(
                "the data set has conversations, which are not cut: leave max_prompt_tokens out"
            )
        by_ids = options.prompts == "tokens" or options.prompt_logprobs
        as_they_are = is_text and not by_ids and uncut
        self.forms: tuple[str, ...] = ("tokens",)
        if as_they_are or self._is_chat or options.prompts == "text":
            self.forms = ("text",)
        elif not by_ids and _capabilities.has_tokenizer(folder):
            self.forms = ("tokens", "text")
        tokenizer = self.tokenizer if is_text and not as_they_are else None
        salted = options.salt and not getattr(dataset, "repeat", False)
        whose = "for each conversation in flight" if has_turns else "in each run"
        if salted or has_turns:
            facts["salt"] = f"{SALT_WORDS} words {whose}" if salted else "none"
        self.bodies = (TurnBodies if has_turns else Bodies)(
            dataset=dataset,
            chat=self._is_chat,
            as_they_are=as_they_are,
            prompts=generation.prompts(dataset, tokenizer, config.vocabulary, config.context),
            tokenizer=lambda: self.tokenizer,
            seed_of=generation.seed_of,
            salted=salted,
            count=self._count if _capabilities.has_tokenizer(folder) and as_they_are else None,
        )

    @functools.cached_property
    def tokenizer(self) -> Any:
        if self._folder is None:
            raise engine_error(
                "this engine needs the model's tokenizer; set workload.model to the folder with it"
            )
        tokenizer, self._facts["tokenizer_sha256"] = load_tokenizer("openai", self._folder)
        return tokenizer

    def _count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, without chat template, with one begin token."""
        special, begin = not self._is_chat, self.tokenizer.bos_token_id
        rows = self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]
        return [len(ids) - (special and ids[:2] == [begin, begin]) for ids in rows]


BATCH_CONNECTIONS = 900


class OpenAiEngine(StackedEngine):
    """Answer each prompt with the tokens that a server generates: int64, little-endian.

    Prompts are text or lists of token ids. Tokens are counted by the server's `usage` or by token
    ids, never by chunks of text.
    """

    first_suite: ClassVar[str] = "url, name, accelerator; start the server"
    _client: Client
    _streams: Streams
    _accepted: int
    _metrics: str | None

    client: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("httptools",)
    options: ClassVar[type[OpenAiOptions]] = OpenAiOptions
    optional_libraries: ClassVar[tuple[str, ...]] = ("transformers", "uvloop")

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,  # noqa: ARG002 - names the server's set-up
        **options: Any,
    ) -> None:
        """Store the options; start nothing.

        Args:
            dataset: Its inputs are text or lists of token ids.
            model: Folder of the model, whose config.json and tokenizer are read here; the server
                loads the weights. None for a running server that takes the prompts unchanged.
            precision: The suite's name for the server's precision.
        """
        self._options = chosen = self.options(**options)
        chosen.check()
        self._generation = chosen.generation("openai")
        if chosen.prompt_logprobs:  # the answer after an echoed prompt may end at once
            self._generation = dataclasses.replace(
                self._generation, ignore_eos=False, min_new_tokens=0
            )
        self._address = None if chosen.url is None else Address.of(chosen.url, chosen.api)
        self._secrets = request_headers(chosen.api_key_env, chosen.headers_env)
        self._server = None
        if chosen.serve is not None:
            self._server = Server(
                chosen.serve,
                engine="openai",
                model=model,
                health=chosen.health,
                start_timeout_s=chosen.start_timeout,
                environment=chosen.env,
                mask=Secrets(self._secrets.values()).mask,
            )
        self._folder = None if model is None else find_model("openai", model)
        self._counting_folder = self._counter_folder(chosen)
        self._dataset = dataset
        processes = chosen.processes
        self._at_a_time = chosen.concurrency or BATCH_CONNECTIONS // processes * processes
        self._concurrency = self._at_a_time // processes
        self._dummy = chosen.weights == "dummy"

    def _counter_folder(self, options: OpenAiOptions) -> Path | None:
        if options.count_tokens != "reference":
            return None
        if options.tokenizer is not None:
            parts = "a tokenizer's files"
            return find_model(
                "openai", options.tokenizer, file="tokenizer_config.json", parts=parts
            )
        if self._folder is None:
            raise SuiteError(
                'engine openai: count_tokens = "reference" needs a tokenizer; set tokenizer or '
                "workload.model to the folder that has it",
                option=("count_tokens", "tokenizer"),
            )
        return self._folder

    @classmethod
    def clients(cls, options: Mapping[str, Any]) -> int:
        return int(options.get("clients") or 1)

    def require(self) -> None:
        """Check the libraries and the server's program; start nothing."""
        load_httptools()
        if _capabilities.has_tokenizer(self._folder) or self._counting_folder is not None:
            require_module("engine openai", "transformers", "openai", "the model's tokenizer")
        if self._server is not None and _capabilities.has_weights(self._folder) and not self._dummy:
            purpose = "the fingerprint of the model's weights"
            require_module("engine openai", "safetensors", "openai", purpose)
        if self._server is not None:
            self._server.require()

    def reach(self) -> None:
        if self._address is not None:
            parts = urlsplit(self._address.root)
            port = parts.port or {"https": 443}.get(parts.scheme, 80)
            require_listening("openai", parts.hostname or parts.path, port)

    def load_samples(self, indices: Sequence[int]) -> None:
        self._source.bodies.load(indices, self._capabilities.form, self._capabilities.fields)
        self._checks.expect(len(self._source.bodies))

    def unload_samples(self, indices: Sequence[int]) -> None:
        self._source.bodies.unload(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        refuse_times(self._generation, "openai", sink)
        if sink.wants_output and not self._gives_output:
            sink.failed(
                engine_error(
                    "accuracy needs tokens, but the server gives text only and there is no "
                    "tokenizer: set workload.model to the folder that has it",
                )
            )
            return
        self._traffic.submitted += len(ids)
        self._streams.put(ids, indices, sink)

    def client_lateness(self) -> Mapping[str, float]:
        return self._streams.take_lateness()

    def event_loop(self) -> AbstractEventLoop:
        return self._streams.loop

    def null_client(self, tokens: int) -> NullClient:
        """Return a client of a null server that sends answers in as many pieces as this server."""
        pieces, counted = self._traffic.pieces, self._traffic.counted
        return NullClient(
            tokens=tokens,
            writes=max(1, min(tokens, round(tokens * pieces / counted))) if counted else tokens,
            api=self._options.api,
            ids=self._capabilities.ids,
            bodies=self._source.bodies,
            generation=self._generation,
            concurrency=self._concurrency,
            timeout_s=self._options.request_timeout,
        )

    def accepted_drafts(self) -> int | None:
        """Return how many draft tokens were accepted since the last call; None if not reported."""
        if accepted := self._traffic.accepted:
            self._traffic.accepted = 0
            return accepted
        if os.environ.get(REPLICA_NUMBER, "0") != "0":
            return 0  # only the first of several clients reads the server's counter
        total = self._streams.run(_capabilities.accepted_by_server(self._client, self._metrics))
        previous, self._accepted = self._accepted, total or 0
        return None if total is None else max(0, total - previous)

    def answer_counts(self) -> Mapping[str, int]:
        seen, self._traffic.seen = self._traffic.seen, Counter()
        return seen

    def metrics_pages(self) -> Sequence[str]:
        is_read = self._metrics is not None and not self._client.url.startswith("unix:")
        return (f"{self._client.url}{self._metrics}",) if is_read else ()

    def counted_again(self) -> Mapping[int, tuple[int, int]] | None:
        if self._counter is None or not self._recounts:
            return None
        kept, self._traffic.kept = self._traffic.kept or {}, {}
        return self._counter.counts(kept)

    def describe(self) -> Mapping[str, str]:
        described = {**self._facts, **self._generation.describe()}
        if self._options.api == "chat":  # the chat's template makes other prompts
            described["generation.api"] = "chat"
        if self._options.extra:
            described["generation.extra"] = json.dumps(self._options.extra, sort_keys=True)
        return described

    def _open(self, undo: contextlib.ExitStack) -> None:
        self.require()  # before a server is started
        allow_files(undo)  # a server that is started here inherits the limit
        if self._server is not None:
            undo.enter_context(self._server)
        address = self._address if self._server is None else Address(root=self._server.url)
        assert address is not None
        timeout_s = self._options.request_timeout
        client = Client(address, PATHS[self._options.api], self._secrets, timeout_s)
        self._client, self._accepted = client, 0
        self._traffic = traffic = Traffic(client, self._server, timeout_s)
        self._facts = {"engine": "openai", "httptools": load_httptools().__version__}
        self._streams, self._facts["event_loop"] = drive(undo, client, traffic, self._concurrency)
        config = Config() if self._folder is None else read_config(self._folder)
        self._generation = dataclasses.replace(self._generation, eos=config.eos)
        self._source = PromptSource(
            self._dataset, self._folder, self._options, self._generation, config, self._facts
        )
        self._capabilities = self._ask(client)
        self._open_counter()
        # Answers with a length from the data set are cut on purpose.
        cut = self._generation.check_lengths(self._dataset)
        self._checks = Checks(
            self._generation,
            watch_ends=not (cut or self._dummy),
            models=self._models,
            template=self._capabilities.template or 0,
            counter=None if self._recounts else self._counter,
        )
        reads_text = not self._capabilities.ids and _capabilities.has_tokenizer(self._folder)
        evaluates = self._generation.prompt_logprobs
        self._gives_output = (
            evaluates or self._capabilities.ids or reads_text or offers_tools(self._dataset)
        )
        tokenizer = self._source.tokenizer if reads_text else None
        bodies, header = self._source.bodies, self._options.session_header
        traffic.use(bodies, self._checks, self._generation, tokenizer, header)
        self._metrics, metrics = self._streams.run(_capabilities.metrics_page(client))
        self._facts |= self._streams.run(_capabilities.server_facts(client, metrics))
        self._describe_server()

    def _open_counter(self) -> None:
        """Load the reference tokenizer if set; it counts answers if the server sends no counts."""
        self._counter: ReferenceCount | None = None
        self._recounts = self._capabilities.usage or self._capabilities.ids
        if self._counting_folder is None:
            return
        tokenizer, self._facts["counter_sha256"] = load_tokenizer("openai", self._counting_folder)
        self._counter = ReferenceCount(tokenizer)
        self._traffic.kept = {} if self._recounts else None

    def _ask(self, client: Client) -> _capabilities.Capabilities:
        path = None if self._folder is None else str(self._folder)
        options = self._options
        names = options.served_model or None, path, options.served_model_answers
        self._models = self._streams.run(_capabilities.model_names(client, *names))
        prompt, forms = self._source.bodies.prompt, self._source.forms
        prompts = {form: functools.partial(prompt, 0, form) for form in forms}
        drawn = {"temperature": self._generation.temperature or 0}
        drawn |= {n: x for n in DRAWING if (x := getattr(self._generation, n)) != DRAWING[n]}
        fields = {"model": self._models[0], "stream": True, **drawn, **options.extra}
        if self._generation.prompt_logprobs:
            fields |= ECHO
        arguments = (self._generation, self._models, self._source.bodies.count)
        recounts = self._counting_folder is not None
        probe = _capabilities.probe(client, prompts, fields, *arguments, recounts=recounts)
        try:
            capabilities = self._streams.run(probe)
            if self._generation.prompt_logprobs:
                first = prompt(0, "tokens")
                self._streams.run(_capabilities.check_echo(client, first, capabilities.fields))
            return capabilities
        except RunError:
            if self._server is not None:  # its death explains more
                self._server.check(within_s=1.0)
            raise

    def _describe_server(self) -> None:
        """Add facts on the server to the fingerprint, but no addresses and paths."""
        capabilities = self._capabilities
        counted_by = "usage" if capabilities.usage else "token ids"
        asked_fewest = "min_tokens" in capabilities.fields or not self._generation.min_new_tokens
        self._facts |= {
            "api": self._options.api,
            "server": "runs already" if self._server is None else "started for the run",
            "prompts": capabilities.form,
            "tokens_counted_by": "reference tokenizer" if self._counter else counted_by,
            "outputs": "token ids" if capabilities.ids else "text, tokenised again",
            "min_tokens": "sent" if asked_fewest else "not sent: the server does not take it",
            **max_tokens_fact(capabilities.fields),
            "concurrency": str(self._at_a_time),
            "work.batch": str(self._at_a_time),
        }
        model = capabilities.model or self._client.mask(self._models[0])
        name, _, revision = model.partition("@")
        if not name.startswith("/"):  # a path is local to this machine
            self._facts["server.model"] = name
        if revision:
            self._facts["server.revision"] = revision
        if capabilities.build:
            self._facts["server.build"] = capabilities.build
        if capabilities.template:
            self._facts["prompt_tokens_added"] = str(capabilities.template)
        if not self._client.keeps_connections:
            self._facts["connections"] = "new for each request: the server closes them"
        if self._dummy:
            self._facts["weights"] = "dummy"
        elif (
            self._server is not None
            and self._folder is not None
            and _capabilities.has_weights(self._folder)
        ):
            # Only a running server knows which weights it has loaded.
            self._facts |= weights_fact(self._folder)
