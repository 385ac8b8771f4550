import io
import logging

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.common import LogEvent

from capsbench.run.workflow_lines import quieten

ERROR = {
    "event": LogEvent.JOB_ERROR, "rule_name": "train", "log": ["results/s/logs/train/e/v/seed0.log"], "jobid": 3,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def speak(runs_speak: bool = True, stream: io.StringIO | None = None) -> str:
    """What is left of the lines of a study, through Snakemake's own handler, its rules being quiet."""
    stream = stream or io.StringIO()
    handler = ColorizingTextHandler(nocolor=True, stream=stream)
    handler.addFilter(DefaultFilter({Quietness.RULES, Quietness.HOST, Quietness.REASON}, False, False, False, False))
    handler.setFormatter(DefaultFormatter())
    logger = logging.Logger("of Snakemake", logging.INFO)
    logger.addHandler(handler)
    quieten(logger, lambda: runs_speak)
    logger.info("Nothing to be done")
    logger.info("Select jobs to execute...")
    logger.info("Execute 2 jobs...", extra={"event": LogEvent.JOB_STARTED})
    logger.info("Finished jobid: 3", extra={"event": LogEvent.JOB_FINISHED})
    logger.info(None, extra={"event": LogEvent.PROGRESS, "done": 3, "total": 40})
    logger.warning("Select jobs to execute... fails")
    logger.error("Error in rule train", extra=ERROR)
    return stream.getvalue()


def test_the_commentary_is_held_back_and_a_failure_is_one_line_with_its_log_file():
    assert speak().splitlines() == [
        "Nothing to be done",
        "Select jobs to execute... fails",
        "failed: train; log: results/s/logs/train/e/v/seed0.log",
    ]


def test_where_the_lines_of_the_runs_do_not_arrive_snakemake_says_how_far_it_is():
    lines = speak(runs_speak=False)
    for word in ("Select jobs", "Execute 2 jobs", "Finished jobid: 3", "3 of 40 steps"):
        assert word in lines
    assert "failed: train" in lines


def test_a_line_begins_where_a_progress_line_of_a_run_was(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    found = speak(stream=Terminal()).removesuffix("\n").split("\n")
    assert len(found) == 3
    assert {line[:4] for line in found} == {"\r\x1b[K"}


def test_the_log_file_of_snakemake_gets_every_line(tmp_path):
    logger = logging.Logger("of Snakemake", logging.INFO)
    logger.addHandler(logging.FileHandler(tmp_path / "log"))
    quieten(logger, lambda: True)
    logger.info("Select jobs to execute...")
    assert (tmp_path / "log").read_text() == "Select jobs to execute...\n"
