"""Several nodes: their states, their list, and answers made one."""
