"""What makes routing fast: sums over votes that are never stored."""
