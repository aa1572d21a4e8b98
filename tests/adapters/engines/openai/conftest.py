"""The HTTP parser that the engine needs, and children that are forks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import forked

WITHOUT_PARSER = ("test_events.py", "test_options.py", "test_parity.py")


@pytest.fixture(scope="module", autouse=True)
def _parser_and_forks(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.name not in WITHOUT_PARSER:
        pytest.importorskip("httptools")
    with pytest.MonkeyPatch.context() as patch:
        forked.use(patch)
        yield
