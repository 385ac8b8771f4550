"""The papers' tables with our numbers next to theirs: from one data frame to csv, Markdown and LaTeX."""

from capsbench.analysis.tables.contrasts import write_contrasts
from capsbench.analysis.tables.files import write_table, write_tables
from capsbench.analysis.tables.paper import TABLES, caption, paper_table
from capsbench.analysis.tables.text import for_people, notes

__all__ = ["TABLES", "caption", "for_people", "notes", "paper_table", "write_contrasts", "write_table", "write_tables"]
