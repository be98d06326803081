"""Annotations that Python's typing has since 3.11. They exist at run time, as tools read them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__all__ = ["Self", "Unpack"]

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
elif TYPE_CHECKING:
    from typing_extensions import Self, Unpack
else:
    Self = Any

    class Unpack:
        """The options of a function; tools see them as Any."""

        def __class_getitem__(cls, options: object) -> Any:
            """Return the type of each option."""
            return Any
