import pytest
from filelock import FileLock
from projects import Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory, worker_id) -> Project:
    """A project whose study has run; not to be changed, but copied. The processes of one test session share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "finished"
    said = folder / "said.txt"
    with FileLock(f"{folder}.lock"):
        if said.exists():
            project = Project(folder)
        else:
            folder.mkdir()
            project = Project.create(folder, own_worker=True)
            done = project.snakemake()
            assert done.returncode == 0, done.output
            said.write_text(done.output)
    project.said = said.read_text()
    return project


@pytest.fixture
def project(finished, tmp_path) -> Project:
    return finished.copy(tmp_path)
