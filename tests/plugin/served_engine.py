"""An engine that answers at once and names the URL of a server's metrics page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_mlperf.builtin.null import NullEngine


class Served(NullEngine):
    """A null engine whose server shows its metrics at `page`."""

    def __init__(self, *, page: str, **others: Any) -> None:
        """Keep the address."""
        super().__init__(**others)
        self._page = page

    def metrics_pages(self) -> Sequence[str]:
        """Return the address."""
        return (self._page,)
