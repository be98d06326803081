"""Contenders in processes of their own, as users run them."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["process"]


@contextlib.contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """Run a function in a process of its own, and end it after the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *args), daemon=True)
    process.start()
    there.close()
    try:
        yield here
        process.join(30)
    finally:
        if process.is_alive():
            process.terminate()
            process.join(5)
        here.close()
