"""A case's name is the text between the brackets of its test ids."""

from __future__ import annotations

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


def test_a_name_is_safe_in_ids_on_the_command_line_and_in_paths() -> None:
    names = ["resnet50", "llama3.1-8b", "a_b+c.d", "0", "A-B-C"]
    unsafe = ["", "-a", "a-", "a--b", ".a", "..", "a b", "a/b", "a\n", "a]", "ä"]

    assert [name for name in [*names, *unsafe] if NAME.fullmatch(name)] == names
