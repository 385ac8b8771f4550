"""Raw files -> arrays: one source per file."""
