"""What is installed is what was tried: each pin names the checksums of its files, which pip then compares."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
def test_each_pin_has_checksums(path):
    text = re.sub(r"\s*#.*", "", path.read_text().replace("\\\n", " "))
    pins = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("--")]
    assert len(pins) > 20
    for pin in pins:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z, ]+\])?==\S+ ", pin), pin
        assert "--hash=sha256:" in pin, pin


def test_extras_are_pinned_with_their_package():
    """Without `coverage[toml]==V`, pip 23 looks at the newest coverage for pytest-cov, which has no checksum here."""
    assert re.search(r"^coverage\[toml\]==", (ROOT / "requirements-dev.txt").read_text(), re.M)
