"""The benchmark at a tiny size: every row comes out, and the arithmetic is right."""
