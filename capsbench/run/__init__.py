"""Training one run, and what it leaves behind."""
