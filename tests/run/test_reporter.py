"""Whatever raises while an error is described, an event goes out that names its type."""

from __future__ import annotations

import json
import os
import threading
from typing import Any, NoReturn

import pytest

from pytest_mlperf.core.errors import RunError, UnavailableError, text_of
from pytest_mlperf.run.child import reporter
from pytest_mlperf.run.child.reporter import KEPT_MESSAGE, KEPT_NAME, KEPT_TRACEBACK, described
from pytest_mlperf.run.worker._sink import CountingSink


class Text(RuntimeError):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __str__(self) -> str:
        if isinstance(self.answer, BaseException):
            raise self.answer
        text: str = self.answer
        return text


class Repr(RuntimeError):
    def __repr__(self) -> NoReturn:
        raise SystemExit(3)


class HalfMade(RunError):
    def __init__(self) -> None:
        """Skip the state of the base class."""


class Notes(RuntimeError):
    @property
    def __notes__(self) -> NoReturn:  # type: ignore[override]
        raise KeyboardInterrupt


def grown() -> RecursionError:
    """Return an error with the longest traceback there is."""

    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as error:
        return error
    raise AssertionError


def caused(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


def test_every_exception_has_a_description_that_names_its_type() -> None:
    raised = "Text: (no text: its __str__ raised {})"
    cases: list[tuple[BaseException, str]] = [
        *(
            (Text(error), raised.format(type(error).__name__))
            for error in (ValueError("x"), SystemExit(0), KeyboardInterrupt())
        ),
        (Text(RecursionError()), raised.format("RecursionError")),
        (Text(MemoryError()), raised.format("MemoryError")),
        (Text(None), raised.format("TypeError")),
        (Text(5), raised.format("TypeError")),
        (Text("a\n\tb"), "Text: a b"),
        (Text("\udcff.bin"), "Text: \udcff.bin"),
        (Repr(), "Repr"),
        (HalfMade(), ""),
        (Notes(), "Notes"),
        (KeyError(Repr()), "KeyError: (no text: its __str__ raised SystemExit)"),
        (ExceptionGroup("some", [Text(ValueError())]), "ExceptionGroup: some (1 sub-exception)"),
        (SystemExit(), "SystemExit"),
        (MemoryError(), "MemoryError"),
        (Text("x" * 10**6), "Text: " + "x" * (KEPT_MESSAGE - 6) + "…"),
    ]
    for error, message in cases:
        description = described("engine", error)
        assert description["message"] == message
        assert (description["layer"], description["kind"]) == ("engine", type(error).__name__)
        assert len(description["traceback"]) <= KEPT_TRACEBACK
        assert json.loads(json.dumps(description)) == description

    description = described("engine", type("x" * 10**6, (RuntimeError,), {})("why"))
    assert (description["kind"], description["designed"]) == ("x" * KEPT_NAME, False)
    assert len(json.dumps(description)) < 2 * (KEPT_MESSAGE + KEPT_TRACEBACK)

    description = described("engine", caused(Text(ValueError()), Text(SystemExit())))
    assert description["message"].startswith(
        "Text: (no text: its __str__ raised ValueError) (in caused,"
    )
    assert "in caused" in description["traceback"]

    description = described("engine", grown())
    assert description["message"].startswith("RecursionError: maximum recursion depth exceeded")
    assert description["traceback"].rstrip().split("\n")[-1].startswith("RecursionError")

    description = described("engine", RunError("dataset", "the data set is empty"))
    assert (description["layer"], description["message"], description["designed"]) == (
        "dataset",
        "the data set is empty",
        True,
    )
    assert described("engine", UnavailableError("set MODELS"))["layer"] == "engine"


def test_a_description_that_never_ends_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "DESCRIBING_S", 0.05)
    over = threading.Event()

    class Hangs(RuntimeError):
        def __str__(self) -> str:
            over.wait()
            return ""

    description, raised = (
        described("engine", Hangs()),
        described("engine", caused(Hangs(), Hangs())),
    )
    over.set()

    message = "Hangs: no details, because describing the error failed or took over 0.05 s"
    assert description["message"] == message
    assert raised["message"].startswith(f"{message} (in caused, ")


def test_where_nothing_can_be_described_the_spare_event_goes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.pipe()
    codes: list[int] = []

    class Ended(BaseException):
        """Stands for the end of the process."""

    def leave(code: int) -> NoReturn:
        codes.append(code)
        raise Ended

    class Nameless(type):
        @property
        def __name__(cls) -> NoReturn:  # type: ignore[override]
            raise MemoryError

    class Hostile(RuntimeError, metaclass=Nameless):
        """Has not even a name."""

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Ended):
        reporter.Reporter(theirs).fail("engine", Hostile())
    event = json.loads(os.read(ours, 10_000))
    os.close(ours)
    os.close(theirs)
    assert codes == [70]
    assert (event["event"], event["kind"]) == ("error", "MemoryError")
    assert event.keys() == {"event", *described("engine", ValueError())}
    assert "no memory was left, or the engine or a library has changed" in event["message"]

    takes = "; it takes an exception object"
    cases: list[tuple[Any, str]] = [
        ("server is gone", "server is gone (sink.failed() was given this text; pass an exception)"),
        (None, f"sink.failed() was given NoneType{takes}"),
        (5, f"sink.failed() was given int{takes}"),
        (ValueError, f"sink.failed() was given the class ValueError{takes}"),
    ]
    for failure, message in cases:
        errors: list[BaseException] = []
        CountingSink(errors.append).failed(failure)
        (error,) = errors
        assert isinstance(error, RunError)
        assert (error.layer, text_of(error)) == ("engine", message)
    exception = ValueError("x")
    errors = []
    CountingSink(errors.append).failed(exception)
    assert errors == [exception]
