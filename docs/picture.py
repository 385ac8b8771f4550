"""Pictures of the docs that are drawn from committed results, anew when their numbers change."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image, PngImagePlugin

from capsbench.analysis.plots.files import save_figure

_KEY = "Rows"


def draw_anew(picture: Path, shown: object, draw: Callable[[], Figure], check: bool) -> bool:
    """Draw a picture if the one that is there shows something else; returns whether it does.

    Args:
        picture: a png file, which keeps a hash of what it shows.
        shown: all that is drawn; its `repr` is hashed.
        draw: makes the figure.
        check: only look.
    """
    digest = hashlib.sha256(repr(shown).encode()).hexdigest()
    if picture.exists() and Image.open(picture).info.get(_KEY) == digest:
        return False
    if not check:
        _, svg = save_figure(draw(), picture.parent, picture.stem)
        svg.unlink()
        told = PngImagePlugin.PngInfo()
        told.add_text(_KEY, digest)
        drawn = Image.open(picture)
        drawn.save(picture, optimize=True, dpi=drawn.info["dpi"], pnginfo=told)
    return True
