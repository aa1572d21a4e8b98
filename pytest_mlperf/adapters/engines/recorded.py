"""Replay answers recorded by MLCommons' client, so that the suite's scorer can score them.

`sample_idx_map.json` maps requests to samples; `events.jsonl` has prompts and answers, in the
format of `evaluation/scoring.py` and `core/types.py` of mlcommons/endpoints at ea332753.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from pytest_mlperf import Dataset, Engine, MlperfError, Sink, UnavailableError
from pytest_mlperf.adapters.engines import engine_error, refused_sample, require_module
from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.llm.model_folder import find_model, load_tokenizer, read_config
from pytest_mlperf.extension import MLC_ENDPOINTS, accuracy_records, read_configuration

CHAT = "openai"
"""The client's name for /v1/chat/completions."""

PHASES = ("performance", "warmup")
"""Keys of the map that are not data sets for accuracy."""

ISSUED, COMPLETE = "sample.issued", "sample.complete"

PROMPT_DATA, ANSWER_DATA = "PromptData", "TextModelOutput"
"""First item of the data of each of the two events."""


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    """Hold the recorded answer to one sample.

    Attributes:
        prompt: Text or token ids; None if neither is recorded.
        text: Answer without its reasoning.
        reasoning: Reasoning before the answer, "" if none is recorded.
        finish: Finish reason; None if the server did not report it.
    """

    prompt: str | list[int] | None
    text: str
    reasoning: str
    finish: str | None

    @property
    def artefacts(self) -> dict[str, bytes]:
        """Answer as "text" and "reasoning", both in UTF-8."""
        texts = {"text": self.text, "reasoning": self.reasoning}
        return {name: text.encode("utf-8", "replace") for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True)
class RecordedAnswers:
    """Hold the recorded answers of an accuracy run.

    Attributes:
        by_sample: Answers by index in the data set; the first one of repeated requests.
        issued: Number of requests, repeats included.
    """

    dataset: str
    by_sample: Mapping[int, RecordedAnswer]
    issued: int


def read_answers(folder: Path, dataset: str | None) -> RecordedAnswers:
    """Read all answers to a data set, or to the only one if None; raise MlperfError for defects."""
    by_dataset, events = accuracy_records(folder)
    if dataset is None:
        dataset = _only_dataset(folder, by_dataset)
    samples = _samples(folder, by_dataset, dataset)
    first: dict[int, str] = {}
    for request, sample in samples.items():
        first.setdefault(sample, request)
    counted = {request: sample for sample, request in first.items()}
    prompts, answers = dict[int, str | list[int] | None](), dict[int, RecordedAnswer]()
    for event in events:
        uuid, kind, data = (event.get(name) for name in ("sample_uuid", "event_type", "data"))
        if not isinstance(uuid, str) or uuid not in counted:
            continue
        sample = counted[uuid]
        if kind == ISSUED:
            prompts[sample] = _prompt(data)
        elif kind == COMPLETE and (texts := _texts(data)) is not None:
            finish = event.get("finish_reason")
            answers[sample] = RecordedAnswer(
                prompt=prompts.get(sample),
                text=texts[0],
                reasoning=texts[1],
                finish=finish if isinstance(finish, str) else None,
            )
    if missing := sorted(first.keys() - answers.keys()):
        raise MlperfError(
            f"{folder}: {len(missing):,} of {len(first):,} samples of {dataset!r:.60} have no "
            f"answer, or an empty one, first: {', '.join(map(str, missing[:5]))}"
        )
    return RecordedAnswers(dataset=dataset, by_sample=answers, issued=len(samples))


def _only_dataset(folder: Path, by_dataset: Mapping[str, Any]) -> str:
    names = [name for name in by_dataset if name not in PHASES]
    if not names:
        raise MlperfError(
            f"{folder}: has no accuracy answers; let the client answer an accuracy data set too"
        )
    if len(names) > 1:
        several = " or ".join(map(repr, names))
        raise MlperfError(f"{folder}: has answers to several data sets; set dataset to {several}")
    return names[0]


def _samples(folder: Path, by_dataset: Mapping[str, Any], dataset: str) -> dict[str, int]:
    samples = by_dataset.get(dataset)
    if not isinstance(samples, dict) or not samples:
        raise MlperfError(f"{folder}: has no samples of {dataset!r:.60}")
    for request, sample in samples.items():
        if type(sample) is not int or sample < 0:
            raise MlperfError(
                f"{folder}: {dataset!r:.60}.{request:.60} is {sample!r:.60}; must be the number of "
                "a sample"
            )
    return samples


def _prompt(data: Any) -> str | list[int] | None:
    if not isinstance(data, list) or data[:1] != [PROMPT_DATA]:
        return None
    text, tokens = [*data[1:3], None, None][:2]
    if isinstance(text, str):
        return text
    is_ids = isinstance(tokens, list) and all(type(token) is int for token in tokens)
    return tokens if is_ids else None


def _texts(data: Any) -> tuple[str, str] | None:
    if not isinstance(data, list) or data[:1] != [ANSWER_DATA] or not any(data[1:]):
        return None
    output, reasoning = [*data[1:3], "", ""][:2]
    return _joined(output), _joined(reasoning)


def _joined(output: Any) -> str:
    pieces = output if isinstance(output, list) else [output]
    return "".join(piece for piece in pieces if isinstance(piece, str))


@dataclass(frozen=True, kw_only=True)
class RecordedOptions:
    """Options of engine recorded.

    Attributes:
        folder: Output folder of one run of `inference-endpoint`, with events.jsonl and
            sample_idx_map.json.
        dataset: Name of the data set in the client's configuration; None uses the only one whose
            accuracy was measured.
    """

    folder: str
    dataset: str | None = None


class RecordedEngine(Engine):
    """Return the answers that MLCommons' client recorded: token ids of their text, int64.

    Each recorded prompt is compared with the data set's, to be sure that answers belong to their
    samples. Scorers also get the answer's text as artefact "text", and its reasoning as
    "reasoning".
    """

    timed: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ("yaml", "transformers")
    options: ClassVar[type] = RecordedOptions

    _config: Mapping[str, str]

    def __init__(
        self, dataset: Dataset, model: str | None = None, precision: str = "", **options: Any
    ) -> None:
        """Store the options; read nothing.

        Args:
            dataset: The data set that the client used, as text or token ids.
            model: Folder of the model, whose tokenizer converts the answers' text to token ids.
            precision: The suite's name for the server's precision; not used.
        """
        del precision
        self._asked = RecordedOptions(**options)
        self._dataset = dataset
        self._model = None if model is None else find_model("recorded", model)

    def require(self) -> None:
        require_module("engine recorded", "yaml", "endpoints", "results of the client")
        require_module("engine recorded", "transformers", "openai", "the model's tokenizer")
        if not Path(self._asked.folder).is_dir():
            raise UnavailableError(
                f"engine recorded: folder {self._asked.folder} does not exist; set folder to the "
                "folder that inference-endpoint wrote for one run",
                option="folder",
            )

    def __enter__(self) -> Self:
        if self._model is None:
            raise engine_error(
                "scorers take token ids, and the client records text: set workload.model to the "
                "folder of the model's tokenizer"
            )
        folder = Path(self._asked.folder)
        try:
            self._config = read_configuration(folder)
            self._answers = read_answers(folder, self._asked.dataset)
        except MlperfError as error:
            raise engine_error(str(error)) from None
        self._tokenizer, self._digest = load_tokenizer("recorded", self._model)
        return self

    def load_samples(self, indices: Sequence[int]) -> None:
        """Raise RunError if a sample has no recorded answer, or its recorded prompt differs."""
        answers = self._answers.by_sample
        if len(answers) != len(self._dataset):
            raise engine_error(
                f"{self._asked.folder} has answers to {len(answers):,} samples of "
                f"{self._answers.dataset!r}, but the suite's data set has {len(self._dataset):,} "
                "samples; set dataset to the whole data set that the client used"
            )
        for index in indices:
            if index not in answers:
                raise refused_sample(index, f"has no answer in {self._asked.folder}")
            prompt, ours = answers[index].prompt, self._dataset.input(index)
            if prompt != (ours if isinstance(ours, str) else list(ours)):
                raise refused_sample(
                    index,
                    f"differs from the client's prompt in {self._asked.folder} ({prompt!r:.60}); "
                    "set dataset to the data set that the client used, in the same order",
                )

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if not sink.wants_output:
            sink.done(ids)
            return
        answers = [self._answers.by_sample[index] for index in indices]
        sink.attach(ids, [answer.artefacts for answer in answers])
        sink.done(ids, [self._output(answer.text, answer.finish) for answer in answers])

    def _output(self, text: str, finish: str | None) -> bytes:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._generation.packed(ids, finish)

    @cached_property
    def _generation(self) -> Generation:
        assert self._model is not None
        lengths: dict[str, Any] = {
            name: int(value)
            for name in ("max_new_tokens", "min_new_tokens")
            if (value := self._config.get(f"model_params.{name}", "")).isdigit()
        }
        return Generation(**lengths, eos=read_config(self._model).eos)

    def describe(self) -> Mapping[str, str]:
        """Return the client's recorded options, in the terms of engine openai."""
        temperature = self._config.get("model_params.temperature", "the server's")
        chat = self._config.get("endpoint_config.api_type", CHAT) == CHAT
        sampled = {} if temperature == "0.0" else {"generation.temperature": temperature}
        return {
            "engine": "recorded",
            "harness": MLC_ENDPOINTS,
            "recorded.answers": f"{self._answers.issued:,} requests; the first of each sample",
            "outputs": "text, tokenised again",
            "tokenizer_sha256": self._digest,
            **self._generation.describe(),
            **({"generation.api": "chat"} if chat else {}),
            **sampled,
        }
