"""The client's behaviour on every back end; `tests/_sync` is generated from it."""
