"""Replay answers recorded by MLCommons' client, so that the suite's scorer can score them."""

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
from pytest_mlperf.extension import MLC_ENDPOINTS, read_answers, read_configuration

CHAT = "openai"
"""The client's name for /v1/chat/completions."""


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
