"""The examples, run as a reader would run them."""
