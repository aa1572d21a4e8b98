"""A case's name is the text between the brackets of its test ids."""

from __future__ import annotations

from pytest_mlperf.core.case import NAME_PATTERN, Case, Scenario, same_file_key


def test_the_id_names_everything_that_tells_cases_apart() -> None:
    case = Case(
        workload="llama2-70b-99.9",
        scenario=Scenario.SERVER,
        engine="trtllm-tp1",
        precision="fp8",
        accelerator="8xH100",
    )

    assert case.id == "llama2-70b-99.9-Server-trtllm-tp1-fp8-8xH100"


def test_a_name_is_safe_in_ids_on_the_command_line_and_in_paths() -> None:
    names = ["resnet50", "llama3.1-8b", "a_b+c.d", "0", "A-B-C"]
    unsafe = ["", "-a", "a-", "a--b", ".a", "..", "a b", "a/b", "a\n", "a]", "ä"]

    assert [name for name in [*names, *unsafe] if NAME_PATTERN.fullmatch(name)] == names


def test_paths_that_are_one_file_on_some_systems_are_equal() -> None:
    """By case and by Unicode's normal forms, and by nothing else."""
    same = [
        ("Fast", "fast"),
        ("caf\u00e9", "cafe\u0301"),
        ("STRASSE", "straße"),
        ("CAFE\u0301", "café"),
    ]
    apart = [("fast", "fast1"), ("cafe", "café"), ("a-b", "a_b"), ("x/fast", "fast")]

    assert [same_file_key(a) == same_file_key(b) for a, b in same] == [True] * len(same)
    assert [same_file_key(a) == same_file_key(b) for a, b in apart] == [False] * len(apart)
