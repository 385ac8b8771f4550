from dataclasses import replace

import pytest

from capsbench.data.catalogue import CATALOGUE


@pytest.fixture
def in_catalogue(monkeypatch):
    """Replaces fields of a data set for one test: in_catalogue("mnist", read=...)."""
    return lambda name, **fields: monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], **fields))
