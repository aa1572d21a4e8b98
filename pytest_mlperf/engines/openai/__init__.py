"""Drive any OpenAI-compatible server, one that runs or one that is started for the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.generation import Generation
from pytest_mlperf.engines.model_folder import (
    Config,
    find_model,
    load_tokenizer,
    read_config,
    weights_fact,
)
from pytest_mlperf.engines.openai import options
from pytest_mlperf.engines.openai.bodies import Bodies, Texts
from pytest_mlperf.engines.openai.capabilities import Capabilities, Wishes, probe
from pytest_mlperf.engines.openai.checks import Checks
from pytest_mlperf.engines.openai.client import Client
from pytest_mlperf.engines.openai.facts import served_name, server_facts
from pytest_mlperf.engines.openai.requirements import (
    has_tokenizer,
    has_weights,
    require,
    require_reach,
)
from pytest_mlperf.engines.openai.traffic import Traffic, allow_files
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.serving import Server
from pytest_mlperf.engines.streaming import Streams

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

AT_A_TIME = 900
"""Requests under way, unless the suite says more or fewer."""


class OpenAiEngine(Engine):
    """Answers each prompt with the tokens a server generates: int64, little-endian.

    Prompts are text or lists of token ids. Tokens are counted by the server's usage or by token
    ids, never by the pieces in which text comes.
    """

    libraries: ClassVar[tuple[str, ...]] = ("aiohttp",)

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,  # noqa: ARG002 - names what the server was set up for
        url: str | None = None,
        serve: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        health: str = "/health",
        start_timeout: float = 600,
        api: str = "completions",
        served_model: str | None = None,
        prompts: str = "auto",
        max_new_tokens: int = 128,
        min_new_tokens: int = 1,
        ignore_eos: bool = False,
        max_prompt_tokens: int | None = None,
        concurrency: int | None = None,
        request_timeout: float = 600,
        api_key_env: str | None = options.DEFAULT_KEY,
        extra: Mapping[str, Any] | None = None,
        weights: str = "checkpoint",
    ) -> None:
        """Keep the options; nothing is started.

        Args:
            dataset: Its inputs are text or lists of token ids.
            model: Folder of the model, whose config.json and tokenizer are read here; the server
                loads the weights. None for a server that runs and takes the prompts as they are.
            precision: The suite's word for what the server was set up for.
            url: Where a server runs, as "http://127.0.0.1:8000".
            serve: Command that starts one; {model} and {port} are replaced.
            env: Environment variables of the server that is started.
            health: Path that the started server answers with 200 once it is ready.
            start_timeout: Seconds until then.
            api: "completions", or "chat": each prompt is then a user's message, to which the server
                adds its chat template.
            served_model: Name that the server knows its model by; None asks the server.
            prompts: "tokens" sends token ids, "text" sends text. "auto": text of the data set as it
                is; token ids as such if the server takes them, else as text that gives them again.
            max_new_tokens: Most tokens per answer.
            min_new_tokens: Tokens before an end token may come.
            ignore_eos: Give every answer `max_new_tokens` tokens.
            max_prompt_tokens: Longer prompts are cut at their end; None cuts none.
            concurrency: Requests under way at a time; None: 900, as servers may often have no more
                than 1,024 files open, and each connection is one.
            request_timeout: Seconds that a stream which began may be silent, and all of them.
            api_key_env: Environment variable that holds the server's key.
            extra: Further fields of each request.
            weights: "checkpoint", or "dummy" where the server was started with random weights.

        Raises:
            SuiteError: An option is out of range.
            EnvironmentFault: The key's environment variable is not set.
            UnavailableError: The model's folder is not here.
        """
        options.check_words(api, prompts, weights)
        self._generation = Generation(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            ignore_eos=ignore_eos,
        )
        self._generation.check("openai")
        options.check_numbers(concurrency, request_timeout)
        options.check_source(url, serve, env or {})
        options.check_extra(extra or {})
        self._url = None if url is None else options.base_url(url)
        self._server = None
        if serve is not None:
            self._server = Server(
                serve,
                engine="openai",
                model=model,
                health=health,
                start_timeout_s=start_timeout,
                environment=env or {},
            )
        self._key = options.api_key(api_key_env)
        self._folder = None if model is None else find_model("openai", model)
        self._dataset = dataset
        self._api = api
        self._served_model = served_model
        self._form = prompts
        self._concurrency = concurrency or AT_A_TIME
        self._timeout_s = request_timeout
        self._extra = dict(extra or {})
        self._dummy = weights == "dummy"

    def require(self) -> None:
        """Look for the libraries, and for the program that serves; nothing is started.

        Raises:
            EnvironmentFault: A library is not here.
            RunError: The first word of `serve` is no program here.
        """
        require(self._folder, self._server, dummy=self._dummy)

    def reach(self) -> None:
        """Look whether a server that runs already listens.

        Raises:
            RunError: It does not.
        """
        if self._url is not None:
            require_reach(self._url)

    def __enter__(self) -> Self:
        """Start the server if there is one to start, and find out what it can do.

        Raises:
            EnvironmentFault: A library is not here.
            RunError: The server does not come up or does not answer, cannot do what is asked for,
                or nobody could count its tokens.
        """
        with contextlib.ExitStack() as undo:
            self._facts = {"engine": "openai"}
            self._open(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections, and stop the server if it was started here."""
        self._undo.__exit__(kind, error, trace)

    def load_samples(self, indices: Sequence[int]) -> None:
        """Make the requests of these samples.

        Raises:
            RunError: A sample is no prompt for this model, or cannot be sent as text.
        """
        self._bodies.load(indices, self._found.form, self._found.fields)
        self._checks.expect(len(self._bodies))

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        self._bodies.unload(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand the samples to the thread that talks to the server."""
        if sink.wants_output and not self._gives_output:
            sink.failed(
                RunError(
                    "engine",
                    "accuracy needs tokens, but the server gives text only and there is no "
                    "tokenizer: set workload.model to the folder that has it",
                )
            )
            return
        self._traffic.submitted += len(ids)
        self._streams.put(ids, indices, sink)

    def client_lateness(self) -> Mapping[str, float]:
        """Return how late requests began and answers were seen, by this process alone."""
        return self._streams.take_lateness()

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, and what decides speed and answers; needs a loaded engine."""
        described = {**self._facts, **self._generation.describe()}
        if self._api == "chat":  # the chat's template makes other prompts
            described["generation.api"] = "chat"
        if self._extra:
            described["generation.extra"] = json.dumps(self._extra, sort_keys=True)
        return described

    def _open(self, undo: contextlib.ExitStack) -> None:
        """Take what a run needs, in the order in which it is needed."""
        self.require()  # what is missing is said before a server is started
        allow_files(undo)  # a server that is started here may then have them too
        if self._server is not None:
            undo.enter_context(self._server)
        url = self._url if self._server is None else self._server.url
        assert url is not None
        client = Client(url, PATHS[self._api], self._key, self._timeout_s)
        self._traffic = traffic = Traffic(client, self._server, self._timeout_s)
        self._streams = Streams(traffic.answer, concurrency=self._concurrency)
        undo.callback(self._streams.close)
        self._facts["aiohttp"] = self._streams.run(client.open())
        undo.callback(lambda: self._streams.run(traffic.close()))
        config = Config() if self._folder is None else read_config(self._folder)
        self._generation = dataclasses.replace(self._generation, eos=config.eos)
        self._bodies = self._sources(config)
        self._found = self._ask(client)
        self._checks = Checks(self._generation, watch_ends=not self._dummy)
        reads_text = not self._found.ids and has_tokenizer(self._folder)
        self._gives_output = self._found.ids or reads_text
        tokenizer = self._tokenizer if reads_text else None
        traffic.use(self._bodies, self._checks, self._generation, tokenizer)
        self._facts |= self._streams.run(server_facts(client))
        self._describe_server()

    def _sources(self, config: Config) -> Bodies:
        """Return what makes requests of samples."""
        if not len(self._dataset):
            raise RunError("engine", "the data set has no samples")
        is_text = isinstance(self._dataset.input(0), str)
        limits = self._generation.limits(config.vocabulary, config.context)
        as_they_are = is_text and self._form != "tokens" and limits.max_prompt_tokens is None
        if as_they_are or self._api == "chat" or self._form == "text":
            self._forms: tuple[str, ...] = ("text",)
        elif self._form == "auto" and has_tokenizer(self._folder):
            self._forms = ("tokens", "text")
        else:
            self._forms = ("tokens",)
        tokenizer = self._tokenizer if is_text and not as_they_are else None
        return Bodies(
            self._dataset,
            chat=self._api == "chat",
            as_they_are=as_they_are,
            prompts=Prompts(dataset=self._dataset, tokenizer=tokenizer, limits=limits),
            texts=lambda: self._texts,
        )

    def _ask(self, client: Client) -> Capabilities:
        """Find out what the server takes."""
        path = None if self._folder is None else str(self._folder)
        name = self._served_model or self._streams.run(served_name(client, path))
        wishes = Wishes(
            forms={form: functools.partial(self._bodies.prompt, 0, form) for form in self._forms},
            fields={"model": name, "stream": True, "temperature": 0, **self._extra},
            max_new_tokens=self._generation.max_new_tokens,
            min_new_tokens=self._generation.min_new_tokens,
            ignore_eos=self._generation.ignore_eos,
        )
        try:
            return self._streams.run(probe(client, wishes))
        except RunError:
            if self._server is not None:  # that it died says more
                self._server.check(within_s=1.0)
            raise

    def _describe_server(self) -> None:
        """Add what was found; no address and no path, which baselines must not have."""
        found = self._found
        asked_fewest = "min_tokens" in found.fields or not self._generation.min_new_tokens
        self._facts |= {
            "api": self._api,
            "server": "runs already" if self._server is None else "started for the run",
            "prompts": found.form,
            "tokens_counted_by": "usage" if found.usage else "token ids",
            "outputs": "token ids" if found.ids else "text, tokenised again",
            "min_tokens": "sent" if asked_fewest else "not sent: the server does not take it",
            "concurrency": str(self._concurrency),
            "work.batch": str(self._concurrency),
        }
        if self._folder is not None and (self._dummy or has_weights(self._folder)):
            self._facts |= weights_fact(self._folder, dummy=self._dummy)
        elif self._dummy:
            self._facts["weights"] = "dummy"

    @functools.cached_property
    def _texts(self) -> Texts:
        return Texts(self._tokenizer)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        """The model's tokenizer, loaded where it is needed first.

        Raises:
            EnvironmentFault: transformers is not installed.
            RunError: There is no tokenizer.
        """
        if self._folder is None:
            raise RunError(
                "engine",
                "this needs the model's tokenizer; set workload.model to the folder that has it",
            )
        tokenizer, self._facts["tokenizer_sha256"] = load_tokenizer("openai", self._folder)
        return tokenizer
