"""A case's name is the text between the brackets of its test ids."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.case import NAME, Case


def test_the_id_names_everything_that_tells_cases_apart() -> None:
    case = Case(
        workload="llama2-70b-99.9",
        scenario="Server",
        engine="trtllm-tp1",
        precision="fp8",
        accelerator="8xH100",
    )

    assert case.id == "llama2-70b-99.9-Server-trtllm-tp1-fp8-8xH100"


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("resnet50", True),
        ("llama3.1-8b", True),
        ("a_b+c.d", True),
        ("0", True),
        ("A-B-C", True),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a--b", False),
        (".a", False),
        ("..", False),
        ("a b", False),
        ("a/b", False),
        ("a\n", False),
        ("a]", False),
        ("ä", False),
    ],
)
def test_a_name_is_safe_in_ids_on_the_command_line_and_in_paths(name: str, valid: bool) -> None:
    assert bool(NAME.fullmatch(name)) is valid
