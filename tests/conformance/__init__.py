"""What other queues promise, held on every back end."""
