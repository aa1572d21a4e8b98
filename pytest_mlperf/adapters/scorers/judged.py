"""Score answers by a language model as the judge, on a server that the user runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import Scores, SuiteError, UnavailableError
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.connections import Connections, Exchange, NoConnection, load_httptools
from pytest_mlperf.adapters.scorers import text as language
from pytest_mlperf.extension import text_of

PLACES = ("question", "ground_truth", "llm_answer")

ATTACHED = "text"
ANSWER_TYPES = ("attached", "text", "tokens")

GRADING_PROMPT = """\
Grade an answer to a question. It is correct only if it states everything that the right answer
states, with the same names, numbers and dates, in whatever words; an answer that is empty or
undecided is wrong.

Question: {question}
Right answer: {ground_truth}
Answer to grade: {llm_answer}

Reply with JSON alone: {{"correct": true}} or {{"correct": false}}
"""

CODE_FENCE = "```"

MAX_REPLY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class JudgedOptions(language.DecoderOptions):
    """Options of scorer judged.

    Attributes:
        url: Address for chat completions, such as "http://127.0.0.1:8000/v1/chat/completions".
        judge: Name of the judging model on the server.
        template: File of the prompt, in which `{question}`, `{ground_truth}` and `{llm_answer}` are
            replaced; `{{` and `}}` are braces. None uses this project's prompt.
        timeout: Maximum time for a judgement, connection included [seconds].
        at_a_time: Maximum number of concurrent judgements.
        answers: Source of the answers: "attached" is the engine's attachment "text"; "text" is
            outputs in UTF-8; "tokens" is outputs of token ids.
    """

    url: str
    judge: str
    template: str | None = None
    answers: str = "attached"
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
        scorers.require_choice("judged", "answers", self.answers, ANSWER_TYPES)

    @property
    def decodes(self) -> bool:
        """Whether answers are decoded from token ids: option `answers` is "tokens"."""
        return self.answers == "tokens"


class JudgedScorer(language.TextScorer[JudgedOptions]):
    """Ask a judge model on a server whether each answer agrees with the right answer.

    Metric "judged" is 100 if the judge finds an answer correct, else 0; the aggregate is the mean,
    in per cent. It depends on the judge and is not an MLPerf score: MLPerf's judge is Llama 3.1 8B
    Instruct with its own prompt, which `template` can provide. MLPerf's target for "accuracy" is
    therefore not decided. As in MLPerf's script, a reply without JSON and a failed request count as
    wrong, and every value that Python regards as true counts as right, even the text "false".
    "unjudged" is the number of failed requests; if all fail, the scorer raises an error.

    Source for parsing replies: e2e-rag/accuracy_eval.py of https://github.com/mlcommons/inference.
    """

    metrics = ("judged", "unjudged")
    libraries: ClassVar[tuple[str, ...]] = ("httptools",)
    optional_libraries: ClassVar[tuple[str, ...]] = ("tokenizers", "transformers")
    name: ClassVar[str] = "judged"

    def __init__(self, *, model: str | None = None, **options: Any) -> None:
        """Read the prompt template and prepare the decoder.

        Args:
            model: Folder of the model that answered, for its tokenizer; the judge is another model.
        """
        super().__init__(model=model, **options)
        settings = self._asked
        self.artefacts = (ATTACHED,) if settings.answers == "attached" else ()
        self._prompt = GRADING_PROMPT
        if settings.template is not None:
            try:
                self._prompt = Path(settings.template).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UnavailableError(
                    f"scorer judged: template {settings.template} cannot be read "
                    f"({text_of(error)}); set it to a text file, or leave it out"
                ) from error
        try:
            self._prompt.format(**dict.fromkeys(PLACES, ""))
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise SuiteError(
                f"scorer judged: template has a placeholder other than {', '.join(PLACES)}, "
                f"or a single brace ({error}); write {{{{ and }}}} for braces",
                option="template",
            ) from None

    def require(self) -> None:
        """Check that the libraries for HTTP requests and for decoding are installed."""
        load_httptools("scorer judged", "scoring")
        super().require()

    def score(
        self,
        outputs: Sequence[bytes],
        references: Sequence[Mapping[str, str]],
        artefacts: Sequence[Mapping[str, bytes]] = (),
    ) -> Scores:
        """Ask the judge about all answers; return the scores "judged" and "unjudged".

        An answer is the attachment "text", UTF-8, or the output, by option `answers`. A reference
        is a dict with `question` and `answer`, the right answer.
        """
        scorers.require_outputs("judged", outputs, references)
        answers = self._answers(outputs, artefacts)
        prompts = [
            self._filled(sample, reference, answer)
            for sample, (reference, answer) in enumerate(zip(references, answers, strict=True))
        ]
        replies = asyncio.run(self._replies(prompts))
        failures = [reply for reply in replies if isinstance(reply, Exception)]
        if len(failures) == len(replies):
            raise scorers.scorer_error(
                f"scorer judged: the judge at {self._asked.url} judged no answer: "
                f"{text_of(failures[0])}; check its server, and the scorer's options url and judge",
            )
        right = [
            100.0 if isinstance(reply, str) and is_correct(reply) else 0.0 for reply in replies
        ]
        return Scores(
            per_sample={"judged": right},
            aggregate={"judged": sum(right) / len(right), "unjudged": float(len(failures))},
            lower=frozenset({"unjudged"}),
        )

    def _answers(
        self, outputs: Sequence[bytes], artefacts: Sequence[Mapping[str, bytes]]
    ) -> list[str]:
        if self._asked.decodes:
            return self._decoder.decode(outputs).texts
        texts = outputs if self._asked.answers == "text" else [one[ATTACHED] for one in artefacts]
        return [text.decode("utf-8", "replace") for text in texts]

    def _filled(self, sample: int, reference: Mapping[str, str], answer: str) -> str:
        with scorers.reading_reference("judged", sample, "a table with question and answer"):
            question, truth = reference["question"], reference["answer"]
        return self._prompt.format(question=question, ground_truth=truth, llm_answer=answer)

    async def _replies(self, prompts: Sequence[str]) -> list[str | Exception]:
        connections = Connections(self._asked.url, keep_alive=False)
        slots = asyncio.Semaphore(self._asked.at_a_time)
        await connections.open()
        try:
            return await asyncio.gather(
                *(self._reply(prompt, connections, slots) for prompt in prompts)
            )
        finally:
            await connections.close()

    async def _reply(
        self, prompt: str, connections: Connections, slots: asyncio.Semaphore
    ) -> str | Exception:
        request = {
            "model": self._asked.judge,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0,
            "max_tokens": 1024,
        }
        body = json.dumps(request).encode()
        head = (
            f"POST {connections.path} HTTP/1.1\r\nHost: {connections.host}\r\n"
            "User-Agent: pytest-mlperf\r\nAccept-Encoding: identity\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reply = _Reply()
        try:
            async with slots, asyncio.timeout(self._asked.timeout):
                await connections.ask(head.encode() + body, reply)
            return str(json.loads(reply.content)["choices"][0]["message"]["content"])
        except TimeoutError:
            return TimeoutError(f"no complete reply within timeout = {self._asked.timeout:g} s")
        except (NoConnection, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            return error


class _Reply(Exchange):
    """Receive the judge's HTTP response; any status other than 200 is an error."""

    def __init__(self) -> None:
        self.content = bytearray()

    def head(self, status: int, kind: str, packing: str) -> None:  # noqa: ARG002 - JSON or wrong
        if status != 200:
            raise ValueError(f"HTTP {status}")

    def data(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > MAX_REPLY_BYTES:
            raise ValueError(f"the reply is larger than {MAX_REPLY_BYTES >> 20} MiB")

    def end(self) -> None:
        """Do nothing, as the response is already complete."""


def is_correct(reply: str) -> bool:
    """Return the value of "correct" in the judge's JSON reply; False if it cannot be parsed."""
    _, fence, rest = reply.partition(CODE_FENCE)
    fenced, closed, _ = rest.partition(CODE_FENCE)
    text = fenced if fence and closed else reply
    try:
        return bool(json.loads(text[text.index("{") : text.rindex("}") + 1]).get("correct", False))
    except (ValueError, RecursionError):
        return False
