"""One registry of all loops: what each installed app declares as `LOOPS` in its `loops.py`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string, module_has_submodule

from controlplane.core.errors import NotFound
from controlplane.core.loops import Gate, Loop, Step


@lru_cache(maxsize=1)
def loops() -> Mapping[str, Loop]:
    """Every declared loop by name."""
    found: dict[str, Loop] = {}
    for config in apps.get_app_configs():
        if config.module is None or not module_has_submodule(config.module, "loops"):
            continue
        for loop in getattr(import_module(f"{config.name}.loops"), "LOOPS", ()):
            if loop.name in found:
                raise ImproperlyConfigured(f"two loops are called {loop.name!r}; the second is in {config.name}.loops")
            if loop.gate is Gate.LEADER and not loop.steps:
                raise ImproperlyConfigured(f"loop {loop.name!r} is gated and has no steps: nothing would run")
            found[loop.name] = loop
    return found


def get_loop(name: str) -> Loop:
    """Raises NotFound."""
    if name not in loops():
        raise NotFound(f"There is no loop {name!r}.", hint=f"Known: {', '.join(sorted(loops()))}.")
    return loops()[name]


def gated() -> list[Loop]:
    """Those that run once in the fleet."""
    return [loop for loop in loops().values() if loop.gate is Gate.LEADER]


def step(path: str) -> Step:
    """The function behind a dotted path."""
    function: Step = import_string(path)
    return function
