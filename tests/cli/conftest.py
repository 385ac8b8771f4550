from pathlib import Path

import pytest
from small_project import STUDY


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    """A folder with one study, configs/small.yaml, and one that is wrong, configs/bad.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/small.yaml").write_text(STUDY)
    Path("configs/bad.yaml").write_text(STUDY.replace("seeds", "seds"))
    return tmp_path
