import gc
import importlib.util
import os
import signal
import tempfile
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # tests need no GPU
if not os.environ["CUDA_VISIBLE_DEVICES"]:
    os.environ["TRITON_INTERPRET"] = "1"  # kernels of a GPU run in Triton's interpreter; read where it is imported
os.environ.pop("MLFLOW_TRACKING_URI", None)

# as scikit-learn and torch set them when used: a worker takes no command whose libraries are set up in another way
os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "True")
os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")

ROOT = Path(__file__).parent.parent

# Every test checks the shapes in the signatures of these rooms; here, since it must precede their import.
ROOMS_WITH_SHAPES = ["capsbench.losses", "capsbench.routing", "capsbench.layers", "capsbench.models"]
if importlib.util.find_spec("beartype") is not None:
    install_import_hook(ROOMS_WITH_SHAPES, "beartype.beartype")


def _mnist_root() -> Path | None:
    named = os.environ.get("CAPSBENCH_DATA")
    for root in [Path(named)] if named else [ROOT.parent / "shared/data", ROOT / "data"]:
        if any((root / "mnist").glob("train-images-idx3-ubyte*")):
            return root
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Heed Ctrl-C, and with this process all that tests start: a shell has its background jobs ignore it.

    Where tests run in several processes, these share a worker for the commands of their workflows.
    """
    if not config.getoption("numprocesses", None):  # with it, this process collects no tests
        gc.disable()  # until all tests are collected: a third of that time was a search for garbage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) and "not slow" not in config.getoption("markexpr"):
        from capsbench.cli.worker import VARIABLE, start_worker

        os.environ.pop(VARIABLE, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYTHONPATH", raising=False)  # tests of workflows go without it
            start_worker(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each process begin with some files of the tests of whole workflows, which take longest.

    pytest-xdist hands every process as many tests at first, in their order. Those on a cluster, one of which runs at a
    time, are in one file.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.path.parent.name == "workflow"]
    short = [item for item in items if item.path.parent.name != "workflow"]
    files = sorted({item.path for item in long}, key=lambda path: (path.name != "test_slurm.py", path.name))
    long.sort(key=lambda item: files.index(item.path))
    ordered: list[pytest.Item] = []
    for process in range(processes):
        own = [item for item in long if files.index(item.path) % processes == process]
        left = processes - process
        size = max(0, -(-(len(items) - len(ordered)) // left) - len(own))
        ordered += own + short[:size]
        short = short[size:]
    items[:] = ordered + short


def pytest_collection_finish() -> None:
    """Leave what was imported out of searches for garbage, which took a seventh of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    root = _mnist_root()
    if root is None:
        pytest.skip("the MNIST files are neither where CAPSBENCH_DATA says nor in ../shared/data")
    return root


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory, worker_id) -> None:
    """Prepared arrays of the tests, apart from the user's and shared by the processes of one test session."""
    base = tmp_path_factory.getbasetemp()
    os.environ["CAPSBENCH_CACHE"] = str((base if worker_id == "master" else base.parent) / "cache")


@pytest.fixture(autouse=True)
def one_thread_and_the_same_draws() -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)  # whatever ran before
