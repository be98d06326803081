"""What both clients do in a cluster."""
