"""Measure a server with MLCommons' client for MLPerf Endpoints, one concurrency at a time.

The client's files have the format of mlcommons/endpoints at
ea3327530376fef63d706f4105612e17c2c80a8d (2026-08-21), `config/schema.py` and `commands/benchmark/`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import Dataset, EnvironmentFault, MlperfError, SuiteError
from pytest_mlperf.adapters.engines import (
    engine_error,
    refuse_conflicts,
    refused_sample,
    require_module,
)
from pytest_mlperf.adapters.engines.openai import OpenAiEngine, OpenAiOptions
from pytest_mlperf.adapters.engines.openai._address import Address, Secrets
from pytest_mlperf.adapters.engines.serving import UNKNOWN_END, ServerProcess, last_lines
from pytest_mlperf.extension import (
    END_EVENT,
    EVENTS_FILE,
    MLC_ENDPOINTS,
    LoadGenSettings,
    RecordedPoint,
    answer_of,
    ended,
    own_length,
    read_point,
)

CLIENT_SOURCE = "git+https://github.com/mlcommons/endpoints"

API = {"chat": "openai", "completions": "openai_completions"}
"""The client's API types; it sends only token ids to /v1/completions."""

VERSION_CODE = """\
import importlib.metadata, json
import inference_endpoint
try:
    from inference_endpoint.utils.version import get_git_sha
except ImportError:
    get_git_sha = lambda: None
print(json.dumps([importlib.metadata.version("inference-endpoint"), get_git_sha()]))
"""

VERSION_TIMEOUT_SECONDS, KILL_TIMEOUT_SECONDS = 120.0, 5.0
"""Maximum time to import the client's package, and to end after a kill."""

POLL_SECONDS = 0.5

START_TIMEOUT_SECONDS, MAX_DURATION_RATIO = 300.0, 1.5
"""Maximum time of a point: time to start and count tokens [s], plus a multiple of its length."""

WARMUP_REQUESTS = 2
"""Requests of the client's warm-up per request in flight."""

ENDLESS_REQUESTS = 10**9
"""Number of requests above what a point can issue, so that the point ends by time."""

KEY = "ENDPOINTS_API_KEY"
"""Environment variable of the server's key, which is in no file and no command line."""

PROMPTS_FILE = "prompts.jsonl"
"""File with the client's last prompts, next to the results of the points."""

PACES_FOLDER = "paces"
PACE_SHARE, REQUEST_SPARE_RATIO, TRIES = 0.1, 1.05, 3
"""Trial run: its length as a share of a point, factor of spare requests, maximum attempts."""

ACCURACY_TYPE = "accuracy"

RESERVED_SETTINGS = frozenset({"runtime", "load_pattern"})


@dataclass(frozen=True, kw_only=True)
class EndpointsOptions(OpenAiOptions):
    """Options of engine endpoints: a server, and MLCommons' client.

    Attributes:
        api: "chat", or "completions", to which the client sends token ids.
        client: Command of the Python in which the client is installed; `python` or `command` of the
            suite entry.
        tokenizer: Folder or name of the tokenizer with which the client counts tokens; None is that
            of the workload's model.
        settings: Further settings of the client by table, e.g. {client = {num_workers = 4}}.
        accuracy: Data sets that the client scores, in the format of its `datasets`, e.g. [{path =
            "questions.jsonl", accuracy_config = {...}}]. They are run at one concurrency of each
            region, after its measurement window. The scores are not compared with baselines.
        whole_passes: Whether each concurrency is measured over whole passes through the data set
            that take at least min_duration, as in MLPerf Endpoints, and not for a fixed time. A
            trial run determines the number of passes.
    """

    client_counts: ClassVar[bool] = True

    api: str = "chat"
    client: Sequence[str] = ()
    tokenizer: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Sequence[Mapping[str, Any]] = ()
    whole_passes: bool = False

    def check(self) -> None:
        super().check()
        unknown = {
            "ignore_eos": self.ignore_eos,
            "extra": self.extra,
            "temperature": self.is_drawn,
            'count_tokens = "reference"': self.count_tokens == "reference",
            "session_header": self.session_header,
            "headers_env": self.headers_env,
            "url": self.url is not None and not Address.of(self.url, self.api).is_plain,
            "clients": self.processes > 1,
            "min_new_tokens": self.min_new_tokens != 1 and self.api == "chat",
        }
        advice = "is not supported by MLCommons' client; remove it, or configure it at the server"
        conflicts = [(is_set, f"{name} {advice}", name) for name, is_set in unknown.items()]
        taken = " and ".join(sorted(RESERVED_SETTINGS & set(self.settings)))
        text = f"settings has {taken}; remove it, and set points and min_duration of the scenario"
        conflicts.append((bool(taken), text, "settings"))
        text = "accuracy is a list of tables, one for each data set: write "
        text += "[[engines.options.accuracy]]"
        are_tables = isinstance(self.accuracy, list | tuple) and all(
            isinstance(table, Mapping) for table in self.accuracy
        )
        conflicts.append((not are_tables, text, "accuracy"))
        refuse_conflicts("endpoints", conflicts)
        for table in self.accuracy:
            self._check_accuracy(table)

    def _check_accuracy(self, table: Mapping[str, Any]) -> None:
        """Raise SuiteError for a data set without scoring method or file, or of another type."""
        path, how = table.get("path"), table.get("accuracy_config")
        fault = None
        if not isinstance(how, Mapping) or not how.get("eval_method"):
            fault = 'needs accuracy_config = { eval_method = "…" }, which says how it is scored'
        elif table.get("type", ACCURACY_TYPE) != ACCURACY_TYPE:
            fault = f"has type = {table['type']!r}; set type = {ACCURACY_TYPE!r}, or leave it out"
        elif path is not None and not Path(str(path)).is_file():
            fault = f"has path = {str(path)!r}, but this file does not exist"
        if fault:
            raise SuiteError(f"engine endpoints: a table of accuracy {fault}", option="accuracy")


class EndpointsEngine(OpenAiEngine):
    """Measure a server with MLCommons' client; engine openai's client runs warm-up and accuracy."""

    harness: ClassVar[str] = MLC_ENDPOINTS
    options: ClassVar[type[OpenAiOptions]] = EndpointsOptions

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        """Store the options; start nothing.

        Args:
            dataset: Its inputs are text, or for api "completions" lists of token ids.
            model: Folder of the model, whose tokenizer counts tokens; with None, set option
                `tokenizer`.
            precision: The suite's name for the server's precision.
        """
        super().__init__(dataset=dataset, model=model, precision=precision, **options)
        assert isinstance(self._options, EndpointsOptions)
        self._ours = self._options
        named = str(self._folder) if self._folder else None
        self._tokenizer_name = self._ours.tokenizer or named

    def require(self) -> None:
        super().require()
        require_module("engine endpoints", "yaml", "endpoints", "results of the client")
        version, commit = _version(self._ours.client)
        self._harness = {
            "harness": MLC_ENDPOINTS,
            "harness.version": version,
            "harness.git_sha": commit or "unknown",
        }

    def describe(self) -> Mapping[str, str]:
        return {**super().describe(), **self._harness}

    def load_samples(self, indices: Sequence[int]) -> None:
        """Load samples; raise RunError for conversations and for answer lengths per sample."""
        for index in indices:
            if isinstance(self._dataset.input(index), Mapping):
                raise refused_sample(
                    index,
                    "is a turn of a conversation, but engine endpoints sends only single prompts; "
                    "use engine openai, or import a run of MLCommons' client",
                )
            if own_length(self._dataset, index) is not None:
                raise refused_sample(
                    index,
                    "sets the length of its answer, but MLCommons' client uses max_new_tokens for "
                    "all answers; remove output_tokens from the data set",
                )
        super().load_samples(indices)
        self._loaded = list(indices)

    def measure_point(
        self,
        concurrency: int,
        settings: LoadGenSettings,
        folder: Path,
        alive: Callable[[], None],
        *,
        scored: bool,
    ) -> None:
        """Measure with `concurrency` requests in flight; the client writes its result to `folder`.

        The client's configuration, log and prompts are written next to that folder. `alive` is
        called on progress. With `scored`, the client also scores the suite's accuracy data sets. If
        the client fails or takes too long, it is ended and RunError is raised.
        """
        if settings.tokens and not self._tokenizer_name:
            raise engine_error(
                "MLCommons' client counts tokens with a tokenizer; set workload.model to the "
                "folder that has it, or the option tokenizer to a name on Hugging Face"
            )
        length_s = settings.min_duration_ms / 1000
        content = self._configuration(concurrency, settings, folder.parent / PROMPTS_FILE)
        point_content = content
        if scored:
            point_content = {**content, "datasets": [*content["datasets"], *self._accuracy()]}
        if self._ours.whole_passes:
            self._measure_passes(content, point_content, length_s, folder, alive)
        else:
            self._run(point_content, _by_time(length_s), folder, length_s, alive)

    def _accuracy(self) -> list[Mapping[str, Any]]:
        return [
            _escaped(
                {
                    "name": f"accuracy{number or ''}",
                    **each,
                    "type": ACCURACY_TYPE,
                    **({"path": str(Path(each["path"]).absolute())} if "path" in each else {}),
                }
            )
            for number, each in enumerate(self._ours.accuracy)
        ]

    def _measure_passes(
        self,
        content: Mapping[str, Any],
        point_content: Mapping[str, Any],
        length_s: float,
        folder: Path,
        alive: Callable[[], None],
    ) -> None:
        """Send the data set whole times for `length_s` or longer; trial runs determine how often.

        `content` configures the client's trial runs, `point_content` the measured run.
        """
        paces, passed = folder.parent / PACES_FOLDER, len(self._loaded)
        paces.mkdir(exist_ok=True)
        pace, pace_s = paces / folder.name, PACE_SHARE * length_s
        self._run(content, _by_time(pace_s), pace, pace_s, alive)
        for attempt in range(1, TRIES + 1):
            rate = self._point(pace).metrics.get("throughput", 0.0)
            if not rate:
                raise engine_error(
                    f"MLCommons' client completed no request in {pace_s:g} s", str(pace)
                )
            requests = math.ceil(rate * length_s * REQUEST_SPARE_RATIO / passed) * passed
            fixed = {**_by_time(length_s), "max_duration_ms": 0, "n_samples_to_issue": requests}
            self._run(point_content, fixed, folder, requests / rate, alive)
            if self._point(folder).duration_s >= length_s:
                return
            pace = paces / f"{folder.name}.{attempt}"
            folder.rename(pace)
        raise engine_error(
            f"MLCommons' client took less than {length_s:g} s for {requests:,} requests in "
            f"each of {TRIES} tries: the server's speed is not steady, see {paces}"
        )

    def _point(self, folder: Path) -> RecordedPoint:
        try:
            return read_point(folder)
        except MlperfError as error:
            raise engine_error(str(error), str(folder)) from None

    def _run(
        self,
        content: Mapping[str, Any],
        runtime: Mapping[str, int],
        folder: Path,
        expected_s: float,
        alive: Callable[[], None],
    ) -> None:
        settings = {**content["settings"], "runtime": {**content["settings"]["runtime"], **runtime}}
        configuration = {**content, "settings": settings, "report_dir": _escaped(str(folder))}
        config = folder.with_name(f"{folder.name}.json")
        config.write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
        self._write_prompts(folder.parent / PROMPTS_FILE)
        self._follow(config, folder, expected_s, alive, scores=len(content["datasets"]) > 1)

    def _write_prompts(self, file: Path) -> None:
        chat, key = self._options.api == "chat", secrets.token_hex(8)
        with file.open("w", encoding="utf-8") as lines:
            for index in self._loaded:
                request = json.loads(self._source.bodies[index].with_salt(key))
                prompt = request["messages"][0]["content"] if chat else request["prompt"]
                if not chat and isinstance(prompt, str):
                    raise engine_error(
                        "MLCommons' client sends token ids to /v1/completions, which this server "
                        'does not take: set api = "chat"'
                    )
                name = "prompt" if chat else "input_tokens"
                lines.write(json.dumps({name: prompt}) + "\n")

    def _configuration(
        self, concurrency: int, settings: LoadGenSettings, prompts: Path
    ) -> dict[str, Any]:
        """Return the client's settings for a concurrency, without duration and output folder."""
        options, wait_s = self._ours, self._options.request_timeout
        minimum = {} if options.api == "chat" else {"min_new_tokens": options.min_new_tokens}
        seeded = {} if settings.seeds.model is None else {"seed": settings.seeds.model}
        named = {"tokenizer_name": self._tokenizer_name} if self._tokenizer_name else {}
        content: dict[str, Any] = _escaped(  # the client expands variables
            {
                "name": "pytest-mlperf",
                "version": "1.0",
                "type": "online",
                "model_params": {
                    "name": self._capabilities.fields["model"],
                    "temperature": 0.0,
                    "streaming": "on",
                    "max_new_tokens": options.max_new_tokens,
                    **minimum,
                    **named,
                    **seeded,
                },
                "datasets": [{"name": "prompts", "type": "performance", "path": str(prompts)}],
                "settings": {
                    "drain": {"warmup_timeout_s": wait_s, "performance_timeout_s": wait_s},
                    "warmup": {
                        "enabled": True,
                        "n_requests": WARMUP_REQUESTS * concurrency,
                        "drain": True,
                    },
                    **options.settings,
                    "runtime": {
                        "scheduler_random_seed": settings.seeds.schedule,
                        "dataloader_random_seed": settings.seeds.sample_index,
                    },
                    "load_pattern": {"type": "concurrency", "target_concurrency": concurrency},
                },
                "endpoint_config": {"endpoints": [self._client.url], "api_type": API[options.api]},
            }
        )
        if self._key:
            content["endpoint_config"]["api_key"] = f"${{{KEY}}}"
        return content

    def _follow(
        self,
        config: Path,
        folder: Path,
        expected_s: float,
        alive: Callable[[], None],
        *,
        scores: bool,
    ) -> None:
        log, quiet_s = folder.with_name(f"{folder.name}.log"), self._options.request_timeout
        limit_s = MAX_DURATION_RATIO * expected_s + 2 * quiet_s + START_TIMEOUT_SECONDS
        files = log, folder / EVENTS_FILE
        window = _poll_window_end(files[1]) if scores else itertools.repeat(False)
        log.write_bytes(b"")
        command = [*self._ours.client, "-m", "inference_endpoint.main", "benchmark"]
        environment = {**_environment(), **self._key}
        with contextlib.ExitStack() as stack:
            arguments = ["from-config", "-c", str(config)]
            process = ServerProcess([*command, *arguments], environment, log, title="the client")
            stack.callback(process.stop)
            size, begun_s = 0, time.monotonic()
            heard_s = begun_s
            while (end := process.ended(POLL_SECONDS)) is None:
                now_s = time.monotonic()
                grown = sum(file.stat().st_size for file in files if file.exists())
                if grown != size:
                    size, heard_s = grown, now_s
                    alive()
                if next(window):
                    # Only the test's own time-out limits scoring.
                    heard_s = begun_s = now_s
                if now_s - heard_s > quiet_s:
                    raise self._broke(
                        log, f"made no progress for request_timeout = {quiet_s:g} s and was ended"
                    )
                if now_s - begun_s > limit_s:
                    raise self._broke(log, f"did not end in {limit_s:.0f} s and was ended")
                if self._server is not None:
                    self._server.check()
        if end == UNKNOWN_END:
            raise self._broke(log, "was ended, because the process that supervised it was killed")
        if end:
            raise self._broke(log, ended(int(end)))

    @property
    def _key(self) -> dict[str, str]:
        header = self._secrets.get("Authorization")
        return {} if header is None else {KEY: header.removeprefix("Bearer ")}

    def _broke(self, log: Path, how: str) -> Exception:
        lines = [Secrets(self._secrets.values()).mask(line) for line in last_lines(log)]
        tail = f"; its log {log} ends: {' | '.join(lines)}" if lines else f"; its log is {log}"
        return engine_error(f"MLCommons' client {how}{tail}", str(log))


def _poll_window_end(events: Path) -> Iterator[bool]:
    """Yield, whenever asked, whether the client's event file states the end of the timed window."""
    read, over = 0, False
    while True:
        if not over and events.exists():
            with events.open("rb") as file:
                file.seek(max(0, read - len(END_EVENT)))
                over = END_EVENT.encode() in file.read()
                read = file.tell()
        yield over


def _by_time(length_s: float) -> dict[str, int]:
    length_ms = round(length_s * 1000)
    return {
        "min_duration_ms": length_ms,
        "max_duration_ms": length_ms,
        "n_samples_to_issue": ENDLESS_REQUESTS,
    }


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables that belong to its Python."""
    about_this = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in about_this}


def _version(client: Sequence[str]) -> tuple[str, str | None]:
    if not client:
        raise EnvironmentFault(
            "engine endpoints needs a Python that has MLCommons' client: set python or command of "
            "the engine's entry",
            option="client",
        )
    try:
        answer = answer_of(
            [*client, "-c", VERSION_CODE],
            limit_s=VERSION_TIMEOUT_SECONDS,
            killed_s=KILL_TIMEOUT_SECONDS,
            environment=_environment(),
        )
    except OSError as error:
        answer, fault = None, f"cannot be started: {error.strerror}"
    else:
        fault = f"did not import MLCommons' client in {VERSION_TIMEOUT_SECONDS:g} s"
    if answer is not None:
        code, out, errors = answer
        with contextlib.suppress(ValueError, TypeError):
            version, commit = json.loads(_last_line(out))
            if code == 0 and isinstance(version, str):
                return version, commit if isinstance(commit, str) else None
        fault = (
            f"has no MLCommons client ({_last_line(errors) or ended(code)}); install it there: "
            f"{client[0]} -m pip install '{CLIENT_SOURCE}'"
        )
    raise EnvironmentFault(f"engine endpoints: {client[0]} {fault}", option="client")


def _last_line(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip().rpartition("\n")[2].strip()
