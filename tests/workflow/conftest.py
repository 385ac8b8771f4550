import pytest
from projects import Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Project:
    """A project whose study has run; not to be changed, but copied."""
    project = Project.create(tmp_path_factory.mktemp("finished"))
    done = project.snakemake()
    assert done.returncode == 0, done.output
    project.said = done.output
    return project


@pytest.fixture
def project(finished, tmp_path) -> Project:
    return finished.copy(tmp_path)
