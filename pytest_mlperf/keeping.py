"""What a session keeps at its end: each file by itself, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable

from pytest_mlperf.core.errors import MlperfError, text_of
from pytest_mlperf.core.foreign_text import visible


class Keeping:
    """Writes files and remembers what to say of them.

    Attributes:
        lines: One line each, for the terminal.
    """

    def __init__(self) -> None:
        """Nothing was written yet."""
        self.lines: list[str] = []

    def keep(self, what: str, write: Callable[[], None], told: str | None = None) -> bool:
        """Write something and return whether that worked; no failure keeps the next from it.

        Args:
            what: In words, for an error that nobody foresaw.
            write: Does it.
            told: The line where it worked.
        """
        try:
            write()
        except MlperfError as error:
            self.lines.append(visible(f"ERROR {error}"))
        except Exception as error:
            self.lines.append(unforeseen(f"{what} could not be written", error))
        else:
            self.lines += [visible(told)] if told else []
            return True
        return False


def unforeseen(what: str, error: Exception) -> str:
    """Return the line about an error that is no mistake of the user's."""
    shown = visible(f"{type(error).__name__}: {text_of(error)}")
    return f"ERROR {what}: {shown}; please report this"
