"""A queue on several nodes, or in several partitions, as one."""
