"""A check of every command that the package packs."""

from __future__ import annotations

from penstock.wire import packing


def refuse_numbers() -> None:
    """Let `pack` refuse numbers: with those hiredis may crash the process; see `Packable`."""
    original = packing.pack

    def pack(args: tuple[object, ...]) -> bytes:
        wrong = [arg for arg in args if not isinstance(arg, (str, bytes))]
        assert not wrong, f"not text: {wrong} in {args}"
        return original(args)  # type: ignore[arg-type]  # checked above

    packing.pack = pack
