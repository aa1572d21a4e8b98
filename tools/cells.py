"""Count the cells of parametrised tests from their source, for `make house`.

`pytest --collect-only` knows the exact number, but takes 24 s of processor and skips the tests of
absent libraries. This takes the decorators of a test as they are written. A parameter list that the
file does not show, such as one from another module, counts as one cell.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def constants(module: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the constants that a module binds at its top level, with values that it shows."""
    for statement in module.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
                    single = value if isinstance(target, ast.Name) else None
                    yield from ((name, single) for name in names if CONSTANT.fullmatch(name))
            case ast.AnnAssign(target=ast.Name(name), value=value) if CONSTANT.fullmatch(name):
                yield name, value


def cells_of_tests(module: ast.Module) -> dict[str, int]:
    """Return the number of cells of each test function."""
    values = {name: value for name, value in constants(module) if value}
    classes = [node.body for node in module.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: math.prod(
            number_of(call.args[1], values)
            for call in node.decorator_list
            if isinstance(call, ast.Call)
            and ast.unparse(call.func) == "pytest.mark.parametrize"
            and len(call.args) > 1
        )
        for body in (module.body, *classes)
        for node in body
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_")
    }


def number_of(node: ast.expr, values: Mapping[str, ast.expr]) -> int:
    """Return how many elements an expression has; 1 if the source does not show it.

    Args:
        node: A display, a constant of the module, or a call or comprehension that keeps the number.
        values: Constants of the module.
    """
    number = 1
    match node:
        case ast.List(elements) | ast.Tuple(elements) | ast.Set(elements):
            number = sum(
                number_of(element.value, values) if isinstance(element, ast.Starred) else 1
                for element in elements
            )
        case ast.Dict(keys):
            number = len(keys)
        case ast.Name(name) if name in values:
            others = {other: value for other, value in values.items() if other != name}
            number = number_of(values[name], others)
        case (
            ast.Call(func=ast.Name("sorted" | "list" | "tuple" | "set"), args=[inner, *_])
            | ast.Call(func=ast.Attribute(inner, "items" | "keys" | "values"))
            | ast.ListComp(generators=[ast.comprehension(iter=inner, ifs=[])])
            | ast.GeneratorExp(generators=[ast.comprehension(iter=inner, ifs=[])])
        ):
            number = number_of(inner, values)
        case ast.Call(func=ast.Name("range"), args=bounds) if all(
            isinstance(bound, ast.Constant) for bound in bounds
        ):
            number = len(range(*(ast.literal_eval(bound) for bound in bounds)))
        case ast.BinOp(left, ast.Add(), right):
            number = number_of(left, values) + number_of(right, values)
    return number
