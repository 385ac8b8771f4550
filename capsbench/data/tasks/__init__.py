"""Arrays -> batches: one kind of task per file."""
