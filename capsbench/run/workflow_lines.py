"""Which of Snakemake's own lines a study shows: those that say what no run says itself.

Each run tells how far the study is (see capsbench.run.progress). Between these lines Snakemake would say which job
starts, which one ends, and how many of its steps are done.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

_COMMENTARY = ("job_started", "job_finished", "progress", "resources_info")  # Snakemake's names of events
_UNNAMED = ("Select jobs to execute", "Using shell:", "Complete log(s):")  # lines that belong to no event
_CLEAR_LINE = "\r\x1b[K"


class StudyLines(logging.Filter):
    """Holds back the running commentary of Snakemake, and puts a failed job into one line with its log file.

    To be put in front of the filters that a handler of Snakemake has: these hold back the failures together with the
    rules.
    """

    def __init__(self, handler: "logging.StreamHandler[Any]", runs_speak: Callable[[], bool]):
        """Speak through a handler.

        Args:
            handler: what writes Snakemake's lines to the terminal.
            runs_speak: whether the lines of the runs reach this terminal too: not those of a cluster's nodes.
        """
        super().__init__()
        self._handler = handler
        self._runs_speak = runs_speak

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is to be shown."""
        event = str(getattr(record, "event", None) or "")
        if event == "job_error":
            self._handler.handle(self._failure(record))
            return False
        commentary = event in _COMMENTARY or str(record.msg).startswith(_UNNAMED)
        if commentary and record.levelno <= logging.INFO and self._runs_speak():
            return False
        if self._handler.stream.isatty():
            self._handler.stream.write(_CLEAR_LINE)  # what was written last may be a progress line that is still open
        return True

    @staticmethod
    def _failure(record: logging.LogRecord) -> logging.LogRecord:
        rule, logs = getattr(record, "rule_name", "?"), getattr(record, "log", [])
        line = f"failed: {rule}; log: {', '.join(map(str, logs)) or 'none'}"
        return logging.makeLogRecord({"levelno": logging.ERROR, "levelname": "ERROR", "msg": line})


def quieten(logger: logging.Logger, runs_speak: Callable[[], bool]) -> None:
    """Let Snakemake's logger write to the terminal what a study shows.

    Its log file and logger plugins keep all lines.

    Args:
        logger: that of Snakemake.
        runs_speak: see StudyLines.
    """
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.filters.insert(0, StudyLines(handler, runs_speak))


# options of Snakemake with which it runs no job
_READING = {
    "-n", "--dry-run", "--dryrun", "--unlock", "--lint", "-S", "--summary", "-D", "--detailed-summary", "-l", "--list",
    "--list-rules", "--list-target-rules", "--lt", "--dag", "--rulegraph", "--filegraph", "--d3dag", "--report",
    "--archive", "--cleanup-metadata", "--cm", "--delete-all-output", "--delete-temp-output", "--list-changes",
    "--list-input-changes", "--li", "--list-params-changes", "--lp", "--list-code-changes", "--lc", "--list-untracked",
    "--list-version-changes", "--lv", "--lu", "--touch", "-t", "--print-compilation", "--generate-unit-tests",
    "--containerize",
}  # fmt: skip


def executes(arguments: Sequence[str]) -> bool:
    """Tell whether a call of Snakemake runs jobs, rather than showing or changing what it knows of them."""
    return not {argument.partition("=")[0] for argument in arguments} & _READING
