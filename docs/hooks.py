"""What mkdocs does beyond its own: plots of results/reference/ on the site, links to files of the repository.

Pages link to files as they lie in the repository, so that the links work there as well. On the site, pictures of
results/reference/ are copied, and all other files outside docs/ are linked on the forge.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PICTURES = (".png", ".svg")
LINK = re.compile(r"(?<=\]\()(?P<path>\.\./[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures of the committed results to the site."""
    root = Path(config.docs_dir).parent
    for path in sorted((root / "results/reference").rglob("*")):
        if path.suffix in PICTURES:
            source = path.relative_to(root / "results").as_posix()  # reference/cpu/plots/...
            files.append(File.generated(config, source, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links that leave docs/ to the copied pictures, or to the forge."""
    root = Path(config.docs_dir).parent
    folder = Path(page.file.abs_src_path or "").parent

    def elsewhere(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match["path"]))
        if target.is_relative_to(config.docs_dir):
            return match["path"]
        inside = target.relative_to(root)
        if target.suffix in PICTURES and inside.is_relative_to("results/reference"):
            return os.path.relpath(inside.relative_to("results"), folder.relative_to(config.docs_dir))
        kind = "tree" if target.is_dir() else "blob"
        return f"{(config.repo_url or '').rstrip('/')}/{kind}/main/{inside.as_posix()}"

    return LINK.sub(elsewhere, markdown)
