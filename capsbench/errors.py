"""The two errors meant for people: each is one line that says what was expected, found, and what to do."""


class InputError(Exception):
    """Something a person gave is wrong (study, data, option); the command ends with exit code 2."""


class RunError(Exception):
    """A run failed for a reason outside the study (disk, memory, driver); exit code 1."""
