"""The two errors meant for people: each is one line that says what was expected, found, and what to do."""


class _OneLine(Exception):
    """Shows what cannot be printed, such as a line break or a colour in a name from a file, as Python writes it."""

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())


class InputError(_OneLine):
    """Something a person gave is wrong (study, data, option); the command ends with exit code 2."""


class RunError(_OneLine):
    """A run failed for a reason outside the study (disk, memory, driver); exit code 1."""
