"""From run folders to tables, plots and a report."""
