"""An extension of the documentation site (mkdocs.yml): signatures show the options of an enqueue.

The site reads the sources and does not run them, so it would show `**options`.
"""

from __future__ import annotations

import importlib
import inspect
from operator import attrgetter
from typing import Any

import griffe


class ShownOptions(griffe.Extension):
    """Takes the keywords of a function from its `__signature__`, if it has one."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace `**options` by the parameters that `inspect` sees."""
        kwargs = [one for one in func.parameters if one.kind is griffe.ParameterKind.var_keyword]
        if not kwargs or "Unpack[" not in str(kwargs[0].annotation):
            return
        module = importlib.import_module(func.module.path)
        found = attrgetter(func.path.removeprefix(f"{func.module.path}."))(module)
        if not hasattr(found, "__signature__"):
            return
        del func.parameters[kwargs[0].name]
        for one in inspect.signature(found).parameters.values():
            if one.kind is one.KEYWORD_ONLY and one.name not in func.parameters:
                shown = griffe.Parameter(
                    one.name,
                    annotation=one.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default=repr(one.default),
                )
                func.parameters.add(shown)
