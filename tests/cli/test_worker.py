"""Commands that run in a child of a worker: to whoever starts them, they are the command itself."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from capsbench.cli.worker import _READ_BY_LIBRARIES, _THREADS, VARIABLE, run_in_worker, start_worker

# starts a worker and commands, as the workflow does; prints pid and exit code of each
WORKFLOW = """
import os, subprocess, sys
from capsbench.cli.worker import _THREADS, start_worker
of_jobs = dict.fromkeys(_THREADS, "1")
start_worker(1, ("capsbench.cli.commands",))
print(os.environ["CAPSBENCH_WORKER"], flush=True)
for line in sys.stdin:
    command = [sys.executable, "-m", "capsbench", *line.split()]
    process = subprocess.Popen(command, stdout=sys.stdout, stderr=subprocess.STDOUT, env=os.environ | of_jobs)
    print("pid", process.pid, flush=True)
    print("exit", process.wait(), flush=True)
"""
LONG = """\
name: long
seeds: [0]
tracking: false
training: {epochs: 100000, batch_size: 32, device: cpu}
experiments: {digits: {data: {name: digits, train_images: 64}}}
variants: {caps: {model: capsnet, options: {conv_channels: 4, primary_types: 1, decoder: null}}}
"""
TRAIN = "train configs/long.yaml digits/caps/seed0"


class Workflow:
    """A process that starts a worker, and commands one after another."""

    def __init__(self, folder: Path):
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKFLOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
            env=environment,
        )  # fmt: skip
        self.address = Path(self.line())
        self.folder = folder

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def start(self, command: str) -> int:
        """Start a command; returns its process."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        while not (line := self.line()).startswith("pid"):
            pass
        return int(line.split()[1])

    def end(self) -> tuple[list[str], int]:
        """Wait for the command; returns what it said and its exit code."""
        said = []
        while not (line := self.line()).startswith("exit"):
            said.append(line)
        return said, int(line.split()[1])

    def run(self, command: str) -> tuple[list[str], int]:
        self.start(command)
        return self.end()

    def training(self) -> tuple[int, int]:
        """Start a training that does not end; returns its command and the child that trains, once it has a result."""
        command = self.start(TRAIN)
        wait_for(lambda: (self.folder / "results/long/runs/digits/caps/seed0/metrics.csv").exists())
        (child,) = children_of(self.worker)
        return command, child

    @property
    def worker(self) -> int:
        """The process of the worker, which may have been started a moment ago."""
        wait_for(lambda: self._worker() is not None)
        return self._worker()

    def _worker(self) -> int | None:
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            words = status.read_bytes().split(b"\0") if status.exists() else []
            if str(self.address.parent).encode() in words and os.getpgid(int(status.parent.name)) == int(
                status.parent.name
            ):
                return int(status.parent.name)
        return None


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.05)


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


@pytest.fixture
def workflow(project):
    Path("configs/long.yaml").write_text(LONG)
    running = Workflow(project)
    yield running
    running.process.kill()
    running.process.wait()


def test_a_command_says_and_returns_what_it_does_by_itself(workflow, project):
    for command in ("config show small", "config show bad", "evaluat", "--version"):
        alone = subprocess.run(
            [sys.executable, "-m", "capsbench", *command.split()], capture_output=True, text=True, check=False,
        )  # fmt: skip
        said, status = workflow.run(command)
        assert status == alone.returncode
        assert "\n".join(said) == (alone.stdout + alone.stderr).strip()
    assert children_of(workflow.worker) == []


def test_a_signal_reaches_the_child(workflow):
    command, child = workflow.training()
    os.kill(command, signal.SIGINT)
    said, status = workflow.end()
    assert status == 130
    assert "interrupted" in said[-1]
    assert is_gone(child)
    assert "interrupted" in (workflow.folder / "results/long/runs/digits/caps/seed0/run.yaml").read_text()


def test_a_child_is_killed_with_its_command(workflow):
    command, child = workflow.training()
    os.kill(command, signal.SIGKILL)
    assert workflow.end()[1] == -signal.SIGKILL
    wait_for(lambda: is_gone(child))


def test_a_killed_child_is_said_as_a_shell_says_it(workflow):
    _, child = workflow.training()
    os.kill(child, signal.SIGKILL)
    assert workflow.end()[1] == 128 + signal.SIGKILL


def test_a_command_whose_worker_was_killed_says_so(workflow):
    _, child = workflow.training()
    os.kill(workflow.worker, signal.SIGKILL)
    said, status = workflow.end()
    assert status == 1
    assert "worker" in said[-1]
    wait_for(lambda: is_gone(child))
    assert workflow.run("--version")[1] == 0  # in a process of its own


def test_a_worker_ends_with_its_workflow_and_leaves_nothing(workflow):
    worker = workflow.worker
    assert workflow.run("--version")[1] == 0
    workflow.process.kill()
    wait_for(lambda: is_gone(worker))
    assert not workflow.address.parent.exists()


def test_a_worker_refuses_what_would_run_other_code(workflow, monkeypatch):
    """In another package, or where libraries would be set up in another way."""
    monkeypatch.setenv(VARIABLE, str(workflow.address))
    for name in _THREADS:
        monkeypatch.setenv(name, "1")
    assert run_in_worker(["--version"]) == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert run_in_worker(["--version"]) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("capsbench.cli.worker.PACKAGE", Path("elsewhere"))
    assert run_in_worker(["--version"]) is None


@pytest.mark.parametrize("address", [None, "", "nowhere/worker"])
def test_without_a_worker_a_command_runs_in_its_own_process(monkeypatch, address):
    monkeypatch.delenv(VARIABLE, raising=False) if address is None else monkeypatch.setenv(VARIABLE, address)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run_in_worker(["--version"]) is None
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_worker_is_set_up_as_the_jobs_of_the_workflow_are(monkeypatch):
    """Snakemake tells the libraries of a job how many threads it has: a worker told otherwise would take no command."""
    monkeypatch.setenv(VARIABLE, "to be restored")
    monkeypatch.delenv(VARIABLE)
    with monkeypatch.context() as patch:
        started = {}
        patch.setattr(subprocess, "Popen", lambda _, **options: started.update(options["env"]))
        start_worker(3)
    print_environment = "from snakemake.shell import shell; print(shell('env', threads=3, read=True))"
    job = subprocess.run([sys.executable, "-c", print_environment], capture_output=True, text=True, check=True).stdout
    of_job = dict(line.split("=", 1) for line in job.splitlines() if line.startswith(_READ_BY_LIBRARIES))
    assert of_job["OMP_NUM_THREADS"] == "3"
    assert of_job == {name: value for name, value in started.items() if name.startswith(_READ_BY_LIBRARIES)}


def test_a_signal_that_is_ignored_stays_ignored(workflow):
    """As nohup has it: a hangup ends no training."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ignoring = Workflow(workflow.folder)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        command, child = ignoring.training()
        os.kill(command, signal.SIGHUP)
        time.sleep(1)
        assert not is_gone(child) and not is_gone(command)
        os.kill(command, signal.SIGINT)
        said, status = ignoring.end()
        assert status == 130, said
    finally:
        ignoring.process.kill()


def test_a_child_ends_after_its_threads_and_handlers_and_loses_no_output():
    child = """if True:
        import atexit, threading, time
        from capsbench.cli.worker import _end
        atexit.register(print, "handler", end="")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
        print("command")
        _end(3)
    """
    done = subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.stdout, done.returncode) == ("command\nthread\nhandler", 3)


def test_a_worker_that_hangs_up_leaves_signals_as_they_were(monkeypatch, tmp_path):
    address = tmp_path / "w"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(address))
        listening.listen(1)
        answering = threading.Thread(target=lambda: listening.accept()[0].close())
        answering.start()
        monkeypatch.setenv(VARIABLE, str(address))
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        assert run_in_worker(["--version"]) is None
        answering.join()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
