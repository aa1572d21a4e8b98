"""Score answers by a language model that judges them, at a server that the user runs."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers import require_outputs

PLACES = ("question", "ground_truth", "llm_answer")

PROMPT = """\
Grade an answer to a question. It is correct only if it states everything that the right answer
states, with the same names, numbers and dates, in whatever words; an answer that is empty or
undecided is wrong.

Question: {question}
Right answer: {ground_truth}
Answer to grade: {llm_answer}

Reply with JSON alone: {{"correct": true}} or {{"correct": false}}
"""

FENCED = re.compile(r"```(?:json)?\s*\n?(.*?)\n?```", re.DOTALL)
BRACED = re.compile(r"\{.*\}", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JudgedOptions:
    """Who judges, and how it is asked.

    Attributes:
        url: Where chats are completed, as "http://127.0.0.1:8000/v1/chat/completions".
        judge: Name that the server knows the judging model by.
        template: File of the prompt, in which `{question}`, `{ground_truth}` and `{llm_answer}` are
            replaced; `{{` and `}}` are braces. None is a prompt of this project.
        timeout: Seconds that one judgement may take.
        at_a_time: Judgements under way at once.
    """

    url: str
    judge: str
    template: str | None = None
    timeout: float = 60.0
    at_a_time: int = 8

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise SuiteError(
                f"scorer judged: url = {self.url!r} must begin with http:// or https://",
                option="url",
            )
        if self.at_a_time < 1 or not self.timeout > 0:
            raise SuiteError("scorer judged: timeout must be above 0 and at_a_time at least 1")


class JudgedScorer:
    """Asks a server whether each answer says what the right one says.

    Metric "judged": 100 where the judge says so, else 0; their mean, in per cent. It is the opinion
    of the model that was given, and no score of MLPerf's: that names its judge, Llama 3.1 8B
    Instruct, and its prompt, which `template` can bring; the gate on "accuracy" stays undecided.
    As in MLPerf's script a reply without JSON and a request that fails count as wrong, and whatever
    is true to Python is right, the text "false" too. Where every request fails it is an error.

    Source: e2e-rag/accuracy_eval.py of https://github.com/mlcommons/inference, for how replies are
    read.
    """

    metrics = ("judged",)
    libraries = ()
    artefacts = ("text",)

    options: ClassVar[type] = JudgedOptions

    def __init__(
        self,
        *,
        model: str | None = None,  # noqa: ARG002 - every scorer is given it
        **options: Any,
    ) -> None:
        """Read the prompt.

        Args:
            model: Not used: it has answered, and another judges.
            options: Those of `JudgedOptions`.
        """
        self._asked = JudgedOptions(**options)
        self._prompt = PROMPT
        if self._asked.template is not None:
            try:
                self._prompt = Path(self._asked.template).read_text("utf-8")
            except OSError as error:
                raise UnavailableError(
                    f"scorer judged: template {self._asked.template} cannot be read "
                    f"({error.strerror}); set it to a text file, or leave it out"
                ) from error
        try:
            self._prompt.format(**dict.fromkeys(PLACES, ""))
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise SuiteError(
                f"scorer judged: template has another place than {', '.join(PLACES)}, or a single "
                f"brace ({error}); write {{{{ and }}}} for braces",
                option="template",
            ) from None

    def score(
        self,
        outputs: Sequence[bytes],
        references: Sequence[Mapping[str, str]],
        artefacts: Sequence[Mapping[str, bytes]] = (),
    ) -> Scores:
        """Have answers judged.

        Args:
            outputs: Of each sample what the log has, which is not looked at.
            references: Of each sample a table with `question` and `answer`, the right one.
            artefacts: Of each sample its answer, UTF-8, as "text".

        Returns:
            The metric of the class.
        """
        require_outputs("judged", outputs, references)
        prompts = [
            self._filled(place, reference, attached["text"])
            for place, (reference, attached) in enumerate(zip(references, artefacts, strict=True))
        ]
        with ThreadPoolExecutor(self._asked.at_a_time) as pool:
            replies = list(pool.map(self._reply, prompts))
        failures = [reply for reply in replies if isinstance(reply, Exception)]
        if len(failures) == len(replies):
            raise RunError(
                "scorer",
                f"scorer judged: no judgement came from {self._asked.url}: {failures[0]}; start "
                "the server, or correct url and judge",
            )
        right = [100.0 if isinstance(one, str) and verdict(one) else 0.0 for one in replies]
        return Scores(per_sample={"judged": right}, aggregate={"judged": sum(right) / len(right)})

    def _filled(self, place: int, reference: Mapping[str, str], answer: bytes) -> str:
        try:
            question, truth = reference["question"], reference["answer"]
        except (KeyError, TypeError):
            raise RunError(
                "scorer",
                f"scorer judged: the reference of sample {place} is no table with question and "
                "answer; let the data set's reference(index) return one",
            ) from None
        text = answer.decode("utf-8", "replace")
        return self._prompt.format(question=question, ground_truth=truth, llm_answer=text)

    def _reply(self, prompt: str) -> str | Exception:
        asked = {
            "model": self._asked.judge,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0,
            "max_tokens": 1024,
        }
        kind, body = {"Content-Type": "application/json"}, json.dumps(asked).encode()
        request = urllib.request.Request(self._asked.url, body, kind)  # noqa: S310 - http, checked
        try:
            with urllib.request.urlopen(request, timeout=self._asked.timeout) as reply:  # noqa: S310
                return str(json.load(reply)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            error.close()
            return error
        except (OSError, ValueError, LookupError, TypeError) as error:
            return error


def verdict(reply: str) -> bool:
    """Return what a judge's reply says of "correct", of its fenced part if it has one."""
    fenced = FENCED.search(reply)
    braced = BRACED.search(fenced[1] if fenced else reply)
    if braced is None:
        return False
    try:
        return bool(json.loads(braced[0]).get("correct", False))
    except ValueError:
        return False
