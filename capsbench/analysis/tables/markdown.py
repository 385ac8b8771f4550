"""A table as Markdown."""

from collections.abc import Sequence

from capsbench.analysis.tables.model import Grid, Table


def markdown(table: Table) -> str:
    """Return the grids of a table, then how to read it and the notes, a paragraph each."""
    parts = [f"**{table.title}**"]
    for each in table.grids:
        parts += [each.heading + ":" * (not each.heading.endswith("?"))] if each.heading else []
        parts.append(_grid(each))
    return "\n\n".join([*parts, table.caption, *table.notes]) + "\n"


def _grid(each: Grid) -> str:
    lines = [list(each.columns), *(list(row.texts) for row in each.rows)]
    lines = [[text.replace("|", r"\|") for text in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    text = [_line(line, widths) for line in lines]
    return "\n".join([text[0], _line(["-" * width for width in widths], widths), *text[1:]])


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)) + " |"
