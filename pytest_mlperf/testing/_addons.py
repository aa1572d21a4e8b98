"""Check an add-on."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

from pytest_mlperf import hookspecs
from pytest_mlperf.core.addons import OptionGroup
from pytest_mlperf.testing._checks import SLOW_IMPORTS, demand

HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("mlperf_")}

IMPORT_ALONE = "import sys, {0}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"


def check_addon(addon: ModuleType) -> frozenset[str]:
    """Check the module of an add-on's entry point; return the names of its options.

    Raises:
        AssertionError: The API version differs, there is no hook, a hook or its argument is
            unknown, or the import loads a slow library.
    """
    subject = f"add-on {addon.__name__}"
    built_for = getattr(addon, "API", None)
    demand(
        built_for == hookspecs.API,
        f"{subject} has API = {built_for}",
        f"this interface is API = {hookspecs.API}",
    )
    hooks = {name: hook for name, hook in vars(addon).items() if name.startswith("mlperf_")}
    demand(bool(hooks), f"{subject} has no hook", f"write one of {', '.join(sorted(HOOKS))}")
    for name, hook in hooks.items():
        demand(name in HOOKS, f"{subject}: there is no hook {name}", f"one of {sorted(HOOKS)}")
        allowed = inspect.signature(HOOKS[name]).parameters
        for argument in inspect.signature(hook).parameters:
            cure = f"{name} may take {', '.join(allowed)}"
            demand(argument in allowed, f"{subject}: {name} takes {argument}", cure)
    command = [sys.executable, "-c", IMPORT_ALONE.format(addon.__name__)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    demand(process.returncode == 0, f"{subject} cannot be imported alone", process.stderr[-500:])
    slow = SLOW_IMPORTS.intersection(process.stdout.split())
    demand(not slow, f"{subject} imports {', '.join(sorted(slow))}", "import it inside a hook")
    group = OptionGroup()
    if declare := hooks.get("mlperf_addoptions"):
        declare(group)
    return frozenset(group.declared)
