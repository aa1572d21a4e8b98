"""What this engine asks of a server, by whichever protocol, and how that can go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHOWN = 300
"""Characters of a server's own words that a message shows."""


class RequestError(Exception):
    """A request had no answer, or none that can be read; the text says what came instead.

    Attributes:
        lost: Whether the server could not be reached, or left in the middle.
    """

    def __init__(self, text: str, *, lost: bool = False) -> None:
        """Keep the text as one line that can be printed."""
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        super().__init__(line if len(line) <= SHOWN else f"{line[:SHOWN]}…")
        self.lost = lost


class Client(Protocol):
    """One connection, for one thread at a time; every method may raise RequestError."""

    def server_ready(self) -> bool:
        """Whether the server says that it is ready."""
        ...

    def model_ready(self) -> bool:
        """Whether the server says that the model is ready; False if it knows none such."""
        ...

    def server(self) -> Mapping[str, Any]:
        """Return the server's metadata: name, version, extensions."""
        ...

    def model(self) -> Mapping[str, Any]:
        """Return the model's metadata: name, versions, platform, inputs, outputs."""
        ...

    def config(self) -> Mapping[str, Any]:
        """Return the model's configuration as Triton gives it; {} where the server has none."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of the models that the server has; nothing where it does not tell."""
        ...

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> tuple[Sequence[NDArray[Any]], str]:
        """Return outputs, and the version of the model that gave them.

        Args:
            inputs: By their names, in the types of the model's metadata.
            outputs: Names.
        """
        ...

    def close(self) -> None:
        """Close the connection, also under a request of another thread: that then fails."""
        ...
