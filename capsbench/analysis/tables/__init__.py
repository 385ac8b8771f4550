"""All tables of a study: the papers' with our numbers beside theirs, and our own; as csv, Markdown and LaTeX."""

from capsbench.analysis.tables.files import build_table, build_tables, write_table, write_tables
from capsbench.analysis.tables.model import Grid, Row, Table
from capsbench.analysis.tables.paper import TABLES
from capsbench.analysis.tables.terminal import terminal_summary

__all__ = [
    "TABLES",
    "Grid",
    "Row",
    "Table",
    "build_table",
    "build_tables",
    "terminal_summary",
    "write_table",
    "write_tables",
]
