"""The site: what docs/hooks.py does to links, and a whole build that needs no network."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

pytest.importorskip("mkdocs")
import hooks  # noqa: E402


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("results.md", "../results/reference/cpu/plots/a.png", "reference/cpu/plots/a.png"),
        ("data/mnist.md", "../../results/reference/data/mnist.png", "../reference/data/mnist.png"),
        ("data/mnist.md", "../../results/reference/cpu/runs.csv", "FORGE/blob/main/results/reference/cpu/runs.csv"),
        ("routings/em.md", "../../capsbench/routing/em.py", "FORGE/blob/main/capsbench/routing/em.py"),
        ("extending.md", "../capsbench/evaluation", "FORGE/tree/main/capsbench/evaluation"),
        ("routings/em.md", "../networks/parts.md#losses", "../networks/parts.md#losses"),
        ("index.md", "studies.md", "studies.md"),
    ],
)
def test_links_that_leave_the_docs_lead_to_copies_or_to_the_forge(page, link, expected):
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), repo_url="FORGE/")
    file = SimpleNamespace(abs_src_path=str(ROOT / "docs" / page))
    found = hooks.on_page_markdown(f"See [this]({link}).", SimpleNamespace(file=file), config)
    assert found == f"See [this]({expected})."


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(\w+:)?//", html)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preconnect)\"?[^>]*href=\"?(?:\w+:)?//", html)
        assert loaded == [], page
    assert (tmp_path / "site/reference/cpu/plots/error_by_variant.png").exists()
