"""Tests of the client on every back end. `tests/_sync` is generated from them."""
