"""What the tests share: back ends, and a proxy that breaks connections."""
