"""New jobs: options, chunks, dedup ids, batches and schedules."""
