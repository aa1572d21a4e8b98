"""Answers judged by a model at a server: how replies are read, and what no reply is worth."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.scorers.judged import JudgedScorer, is_correct
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences


def test_verdicts_of_a_judges_reply_are_parsed() -> None:
    """A fence is opened first, then from the first brace to the last."""
    replies = {
        '{"correct": true}': True,
        '{"correct": false}': False,
        'Well. {"reasoning": "same {name}", "correct": true} Done.': True,
        '```json\n{"correct": true}\n```': True,
        '{"correct": false} ```{"correct": true}``` {"correct": false}': True,
        # Whatever is true to Python.
        '{"correct": "false"}': True,
        '{"correct": 0}': False,
        '{"reasoning": "none"}': False,
        "correct: true": False,
        '{"correct": tru': False,
        '{"correct": true} and {"correct": true}': False,
        "": False,
        # Nothing that takes a judge's time squared.
        "```json" + "\n" * 200_000 + "{" * 200_000: False,
        "{" * 200_000 + "}" * 200_000: False,
    }

    assert {reply: is_correct(reply) for reply in replies} == replies


@contextmanager
def judge() -> Iterator[str]:
    """Serve a judge that compares letters, and is out of order for the question "down"."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question, truth, answer = request["messages"][0]["content"].split("|")
            if question == "down" or request["temperature"] != 0.0:
                self.send_error(500)
                return
            content = json.dumps({"correct": truth == answer})
            body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "prompt.txt"
    path.write_text("{question}|{ground_truth}|{llm_answer}", "utf-8")
    return str(path)


def judged(url: str, template: str, rows: list[tuple[str, str, str]]) -> list[float | None]:
    scores = JudgedScorer(url=url, judge="j", template=template).score(
        [b""] * len(rows),
        [{"question": question, "answer": truth} for question, truth, _ in rows],
        [{"text": answer.encode()} for *_, answer in rows],
    )
    right = [one or 0.0 for one in scores.per_sample["judged"]]
    assert scores.aggregate["judged"] == sum(right) / len(right)
    return list(scores.per_sample["judged"])


def test_each_answer_is_judged_and_a_request_that_fails_is_wrong(template: str) -> None:
    rows = [("a", "Paris", "Paris"), ("b", "Oslo", "Rome"), ("down", "x", "x")]
    with judge() as url:
        assert judged(url, template, rows) == [100.0, 0.0, 0.0]


GOOD = b'{"choices":[{"message":{"content":"{\\"correct\\": true}"}}]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


def deep(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


HOSTILE: Mapping[str, Sequence[bytes]] = {
    "cut": [HEAD + b"Content-Length: 1000\r\n\r\n", GOOD],
    "redirect": [b"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"],
    "no HTTP": [b"SSH-2.0-OpenSSH\r\n"],
    "no status": [b"HTTP/1.1 abc OK\r\n\r\n"],
    "nothing": [],
    "long header": [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000],
    "chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n"],
    "deep reply": [HEAD + b"\r\n" + b"[" * 3_000],
    "deep judgement": [HEAD + b"\r\n" + deep('{"a":' * 3_000 + "}")],
    "list": [HEAD + b"\r\n" + deep("[1]")],
    "no choices": [HEAD + b"\r\n{}"],
    "not UTF-8": [HEAD + b"\r\n\xff\xfe\x00"],
    "too large": [HEAD + b"\r\n", *[b" " * 65_536] * 17],
    "drip": [HEAD + b"\r\n", *[b" "] * 1000],
    "drip of headers": [b"HTTP/1.1 200 OK\r\n", *[b"X-A: b\r\n"] * 1000],
}
"""Replies in pieces, 10 ms apart."""


@contextmanager
def hostile(pieces: Sequence[bytes]) -> Iterator[str]:
    """Serve one reply of these pieces, to the question "b", and good ones."""
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            received = b""
            while b"{" not in received or not received.endswith(b"}"):
                received += connection.recv(65_536)
            bad = b"b|x|x" in received
            for piece in pieces if bad else [HEAD + b"\r\n" + GOOD]:
                connection.sendall(piece)
                if over.wait(0.01):
                    break

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_reply_is_one_wrong_answer_that_is_counted(name: str, template: str) -> None:
    with hostile(HOSTILE[name]) as url:
        scores = JudgedScorer(url=url, judge="j", template=template, timeout=1.0).score(
            [b""] * 3,
            [{"question": question, "answer": "x"} for question in "abc"],
            [{"text": b"x"}] * 3,
        )
    assert scores.per_sample["judged"] == [100.0, 0.0, 100.0]
    is_judgement = name in {"deep judgement", "list"}  # a reply that says nothing of "correct"
    assert scores.aggregate["unjudged"] == (0 if is_judgement else 1)


def test_a_judge_that_never_answers_is_an_error_and_no_score(template: str) -> None:
    with (
        judge() as url,
        pytest.raises(RunError, match=r"judge at http://127.0.0.1.* judged no answer"),
    ):
        judged(url, template, [("down", "x", "x")] * 2)


def test_the_score_is_never_called_mlperfs() -> None:
    assert JudgedScorer.metrics == ("judged", "unjudged")
    assert JudgedScorer(url="http://x", judge="j").artefacts == ("text",)


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ({"answers": "text"}, [b"Paris", "Öslo".encode()]),
        ({"answers": "tokens", "dtype": "int32"}, [b"\0\0\0\0", b"\1\0\0\0\2\0\0\0"]),
    ],
)
def test_an_answer_may_be_the_output_itself(
    template: str, tmp_path: Path, options: dict[str, Any], outputs: list[bytes]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"Paris": 0, "Ö": 1, "slo": 2}, unk_token="Paris")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}', "utf-8"
    )
    rows = [{"question": "a", "answer": "Paris"}, {"question": "b", "answer": "Öslo"}]

    with judge() as url:
        scorer = JudgedScorer(model=str(tmp_path), url=url, judge="j", template=template, **options)
        assert scorer.artefacts == ()
        assert scorer.score(outputs, rows).per_sample["judged"] == [100.0, 100.0]


def test_wrong_options_templates_and_references_are_refused(tmp_path: Path) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"url": "127.0.0.1:8000"}, "must begin with http"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"answers": "log"}, "answers = 'log' is not one of attached"),
        ({"answers": "tokens"}, "decodes tokens, but neither its option"),
    ]
    for number, text in enumerate(["{answer}", "{", "{0}", "{question.x}"]):
        file = tmp_path / str(number)
        file.write_text(text, "utf-8")
        options.append(({"template": str(file)}, "template has a placeholder other than question"))

    def build(more: dict[str, Any]) -> JudgedScorer:
        return JudgedScorer(**{"url": "http://x", "judge": "j", **more})

    assert differences(build, SuiteError, options) == []
    with pytest.raises(UnavailableError, match="cannot be read"):
        build({"template": "/none/t"})
    (tmp_path / "latin").write_bytes(b"\xe9 {question}")
    with pytest.raises(UnavailableError, match=r"latin cannot be read .*codec can't decode"):
        build({"template": str(tmp_path / "latin")})
    with pytest.raises(RunError, match="it must be a table with question and answer"):
        build({}).score([b""], ["text"], [{"text": b""}])  # type: ignore[list-item]


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers(template: str) -> None:
    rows = [{"question": "a", "answer": "x"}, {"question": "b", "answer": "y"}]
    with judge() as url:
        scores = check_scorer(
            JudgedScorer,
            [b"", b""],
            rows,
            options={"url": url, "judge": "j", "template": template},
            artefacts=[{"text": b"x"}, {"text": b"z"}],
        )

    assert scores.aggregate == {"judged": 50.0, "unjudged": 0.0}
