"""Read the answers that MLCommons' client recorded for accuracy, by sample.

`sample_idx_map.json` maps requests to samples; `events.jsonl` has prompts and answers, in the
format of `evaluation/scoring.py` and `core/types.py` of the client (see `stores.endpoints`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.stores.endpoints import EVENTS_FILE, RESULT_TITLE, SAMPLES_FILE, events_of
from pytest_mlperf.stores.foreign import read_foreign

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
        """Answer and reasoning in UTF-8, by name."""
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
    for name in (SAMPLES_FILE, EVENTS_FILE):
        if not (folder / name).exists():
            raise MlperfError(
                f"{folder}: has no {name}, so answers cannot be matched to samples, and scores "
                "cannot be judged"
            )
    chosen, samples = _samples(folder, dataset)
    requests: dict[int, str] = {}
    for request, sample in samples.items():
        requests.setdefault(sample, request)
    first = {request: sample for sample, request in requests.items()}
    prompts, answers = dict[int, str | list[int] | None](), dict[int, RecordedAnswer]()
    for kind, request, event in _requests(folder):
        if request in first and kind == ISSUED:
            prompts[first[request]] = _prompt(event.get("data"))
        elif request in first and kind == COMPLETE:
            sample = first[request]
            if (texts := _texts(event.get("data"))) is not None:
                finish = event.get("finish_reason")
                answers[sample] = RecordedAnswer(
                    prompt=prompts.get(sample),
                    text=texts[0],
                    reasoning=texts[1],
                    finish=finish if isinstance(finish, str) else None,
                )
    if missing := sorted(requests.keys() - answers.keys()):
        raise MlperfError(
            f"{folder}: {len(missing):,} of {len(requests):,} samples of {quoted(chosen)} have no "
            f"answer, or an empty one, first: {', '.join(map(str, missing[:5]))}"
        )
    return RecordedAnswers(dataset=chosen, by_sample=answers, issued=len(samples))


def _samples(folder: Path, dataset: str | None) -> tuple[str, dict[str, int]]:
    path = folder / SAMPLES_FILE
    content = read_foreign(path, RESULT_TITLE)
    if not isinstance(content, dict):
        raise MlperfError(f"{path}: must be an object, not {quoted(content)}")
    names = [name for name in content if name not in PHASES]
    if dataset is None and len(names) != 1:
        several = " or ".join(map(quoted, names))
        problem = f"has answers to several data sets; set dataset to {several}"
        if not names:
            problem = "has no accuracy answers; let the client answer an accuracy data set too"
        raise MlperfError(f"{path}: {problem}")
    chosen = names[0] if dataset is None else dataset
    samples = content.get(chosen)
    if not isinstance(samples, dict) or not samples:
        raise MlperfError(f"{path}: has no samples of {quoted(chosen)}")
    for request, sample in samples.items():
        if type(sample) is not int or sample < 0:
            raise MlperfError(
                f"{path}: {quoted(chosen)}.{request} is {quoted(sample)}; must be the number of a "
                "sample"
            )
    return chosen, samples


def _requests(folder: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for event in events_of(folder, b'"sample.issued"', b'"sample.complete"'):
        kind, request = event.get("event_type"), event.get("sample_uuid")
        if isinstance(kind, str) and isinstance(request, str):
            yield kind, request, event


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
