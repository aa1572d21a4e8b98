"""Check function calls against the right ones, as BFCL does for single-turn subsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_mlperf.adapters.scorers.function_calls import _foreign

Call = Mapping[str, Any]
"""A function's arguments by its name."""

PYTHON: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}

JAVA: Mapping[str, type] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("Array", "ArrayList"), list),
    **dict.fromkeys(("char", "String", "any"), str),
    "boolean": bool,
    "HashMap": dict,
}

JAVASCRIPT: Mapping[str, type] = {
    "String": str,
    "integer": int,
    "float": float,
    "Bigint": int,
    "Boolean": bool,
    "dict": dict,
    "array": list,
    "any": str,
}

Language = tuple[Mapping[str, type], Callable[..., Any] | None]
"""Types of a language, and the function that reads its values from text."""

LANGUAGES: Mapping[str, Language] = {
    "simple_java": (JAVA, _foreign.java_value),
    "simple_javascript": (JAVASCRIPT, _foreign.js_value),
}
"""Languages of the subsets that are not in Python."""

DEFECTS = (*(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),)
"""Errors that BFCL's checker raises for unexpected answers; here these answers are wrong."""


def is_right(
    calls: Sequence[Call], allowed: Sequence[Any], functions: Sequence[Any], subset: str
) -> bool:
    """Return whether the calls are exactly the right ones, in any order.

    `allowed` holds, for each right call, the function's name and the allowed values of its
    arguments; `functions` are BFCL's descriptions of the functions. `subset`, BFCL's name,
    determines the programming language.
    """
    language = LANGUAGES.get(subset, (PYTHON, None))
    if len(calls) != (len(allowed) if re.search("parallel|multiple", subset) else 1):
        return False
    try:
        if "parallel" in subset:
            return _match(calls, allowed, functions, language)
        name = next(iter(allowed[0]))
        described = _description(functions, name) if "multiple" in subset else functions[0]
        return _is_allowed(calls[0], allowed[0], described, language)
    except DEFECTS:
        return False


def _description(functions: Sequence[Any], name: str) -> Any:
    return next((function for function in functions if function["name"] == name), None)


def _match(
    calls: Sequence[Call], allowed: Sequence[Any], functions: Sequence[Any], language: Language
) -> bool:
    """Match each right call with the first unmatched call that fits; return whether all match.

    As in BFCL, a choice is never revised.
    """
    left = list(calls)
    for right in allowed:
        described = _description(functions, next(iter(right)))
        match = next((call for call in left if _is_allowed(call, right, described, language)), None)
        if match is None:
            return False
        left = [call for call in left if call is not match]
    return True


def _is_allowed(call: Call, right: Any, described: Any, language: Language) -> bool:
    values = next(iter(right.values()))
    parameters = described["parameters"]
    name = described["name"].replace(".", "_")
    if name not in call or any(key not in call[name] for key in parameters["required"]):
        return False
    arguments = call[name]
    for parameter, value in arguments.items():
        details = parameters["properties"]
        if parameter not in details or parameter not in values:
            return False
        if not _fits(value, values[parameter], details[parameter], language):
            return False
    return all(key in arguments or "" in values[key] for key in values)


def _fits(value: Any, allowed: Any, details: Any, language: Language) -> bool:
    types, convert = language
    kind = details["type"]
    expected = types[kind]
    inner = details["items"]["type"] if kind in ("array", "tuple", "Array", "ArrayList") else None
    nested = types[inner] if inner else None
    if convert:
        if type(value) is not str or len(value) > _foreign.MAX_VALUE_CHARACTERS:
            return False
        value = convert(value, kind, inner)
    elif kind == "float" and type(value) is int:
        value = float(value)
    valid, is_variable = _type_of(value, allowed, expected, nested)
    return valid and (value in allowed if is_variable else _is_value(value, allowed, nested))


def _is_value(value: Any, allowed: Any, nested: Any) -> bool:
    if isinstance(value, dict):
        return _is_dict(value, allowed)
    if isinstance(value, str):
        return _plain(value) in [_plain(text) for text in allowed if type(text) is str]
    if not isinstance(value, list):
        return value in allowed
    if nested is dict:
        return _is_list_of_dicts(value, allowed)
    return [*map(_plain, value)] in [[*map(_plain, items)] for items in allowed]


def _type_of(value: Any, allowed: Any, expected: Any, nested: Any) -> tuple[bool, bool]:
    """Return (whether a value's type fits, whether it may be a variable's name).

    `expected` is the declared type, `nested` that of items (None: any); types of the right values,
    `allowed`, fit too.
    """
    kind = next((type(option) for option in allowed if option != ""), None)
    if type(value) is not expected:
        return kind is not None and type(value) is kind, True
    is_variable = kind is not None and kind is not expected
    if nested is None:
        return True, is_variable
    fitting = any(
        type(option) is not list or all(_type_of(item, option, nested, None)[0] for item in value)
        for option in allowed
    )
    return fitting, is_variable


def _plain(value: Any) -> Any:
    if type(value) is not str:
        return value
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')


def _is_dict(value: Any, allowed: Any) -> bool:
    return any(
        all(
            key in right and _plain(entry) in map(_plain, right[key])
            for key, entry in value.items()
        )
        and all(key in value or "" in values for key, values in right.items())
        for right in allowed
        if right != ""
    )


def _is_list_of_dicts(value: Any, allowed: Any) -> bool:
    return any(
        len(value) == len(right)
        and all(_is_dict(entry, [option]) for entry, option in zip(value, right, strict=True))
        for right in allowed
    )
