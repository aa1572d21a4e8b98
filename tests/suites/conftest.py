"""The twin of a module, which names it `SUITE`, and its engine's answers.

A test that needs the answers of a whole twin runs a real model for seconds: it is nightly.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.suites.tiny_twin import Twin


@pytest.fixture(scope="module")
def twin(request: pytest.FixtureRequest) -> Twin:
    return Twin(request.module.SUITE)


@pytest.fixture(scope="module")
def answers(twin: Twin) -> list[bytes]:
    return twin.answers()


@pytest.fixture(scope="module")
def tokenizer(twin: Twin) -> Any:
    return twin.tokenizer()


def pytest_itemcollected(item: pytest.Item) -> None:
    if {"answers", "damaged"} & {*getattr(item, "fixturenames", ())}:
        item.add_marker(pytest.mark.nightly)
