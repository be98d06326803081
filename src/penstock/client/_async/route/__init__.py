"""The routes of a queue: how its calls reach one node, several nodes, or partitions."""
