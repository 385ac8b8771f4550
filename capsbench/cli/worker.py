"""Commands of a workflow as children of one process that has imported everything.

Torch and MLflow take longer to import than a small network takes to train. The workflow starts a worker,
and each of its commands has the worker fork a child, which runs it in its own folder, environment, terminal and log.
The command itself waits, and passes signals on: to whoever started it, it is the child. A child that loses its command
is killed, and a worker ends with its workflow. Where there is no worker, or one of other code, a command runs in its
own process.
"""

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

VARIABLE = "CAPSBENCH_WORKER"  # environment: the address of the worker
PACKAGE = Path(__file__).resolve().parent.parent
MODULES = (
    "torch._dynamo", "torch._inductor.config", "mlflow.store.tracking.sqlalchemy_store",
    "capsbench.run.tracking", "capsbench.run.train", "capsbench.evaluation", "capsbench.cli.commands",
)  # fmt: skip
_READ_BY_LIBRARIES = ("OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "TORCH", "CUDA_", "PYTHON", "LD_", "MALLOC_", "KMP_")
_THREADS = (  # as snakemake.shell sets them
    "OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip
_START = "import sys; from capsbench.cli.worker import main; sys.exit(main(sys.argv[1:]))"
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NUMBER = struct.Struct("!i")
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


# In the workflow


def start_worker(threads: int, modules: Sequence[str] = MODULES) -> None:
    """Start a worker that ends with this process, and tell the commands that this process starts of it.

    Nothing happens where there is one, or where `CAPSBENCH_WORKER` is set to anything else.

    Args:
        threads: those of the jobs whose commands it is to take; Snakemake tells a job's libraries of them.
        modules: what it imports before it takes commands.
    """
    if VARIABLE in os.environ or not hasattr(os, "pidfd_open"):  # Linux has it
        return
    folder = tempfile.mkdtemp(prefix="capsbench-")
    address = str(Path(folder, "worker"))
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(address)
    except OSError:  # a path too long for a socket
        listening.close()
        Path(folder).rmdir()
        return
    listening.listen(128)
    lifeline, kept = os.pipe()  # its end closes with this process, however that ends
    subprocess.Popen(
        [sys.executable, "-c", _START, str(listening.fileno()), str(lifeline), folder, *modules],
        pass_fds=(listening.fileno(), lifeline), start_new_session=True, cwd=PACKAGE.parent,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | dict.fromkeys(_THREADS, str(threads)),
    )  # fmt: skip
    listening.close()
    os.close(lifeline)
    os.set_inheritable(kept, False)
    os.environ[VARIABLE] = address


# In a command


def run_in_worker(arguments: Sequence[str]) -> int | None:
    """Run a command in a child of the worker; returns its exit code, or None where no worker takes it."""
    address = os.environ.get(VARIABLE)
    if not address:
        return None
    request = {
        "arguments": list(arguments), "folder": str(Path.cwd()), "environment": dict(os.environ),
        "package": str(PACKAGE), "python": sys.prefix,
    }  # fmt: skip
    text = json.dumps(request).encode()
    child: int | None = None
    status: int | None = None

    def pass_on(number: int, _: Any) -> None:
        if child is None:
            raise SystemExit(128 + number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    before: dict[int, Any] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address)
            for number in _PASSED_ON:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets SIGHUP
                    before[number] = signal.signal(number, pass_on)
            streams = array.array("i", (0, 1, 2))
            connection.sendmsg([_NUMBER.pack(len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            connection.sendall(text)
            child = _receive_number(connection)
            status = None if child is None else _receive_number(connection)
    except OSError:
        status = None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if child is None:
        return None
    if status is None:
        print("capsbench: the worker of this workflow ended; run the workflow again", file=sys.stderr)
        return 1
    return status


def _receive_number(connection: socket.socket) -> int | None:
    received = _receive(connection, _NUMBER.size)
    return None if received is None else int(_NUMBER.unpack(received)[0])


def _receive(connection: socket.socket, size: int) -> bytes | None:
    """Receive so many bytes; None where the other side closed."""
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            return None
        received += part
    return received


# In the worker


@dataclass
class Request:
    """A command that a child is to run: its arguments, folder, environment, and open standard streams."""

    arguments: list[str]
    folder: str
    environment: Mapping[str, str]
    streams: tuple[int, int, int]

    def take_over(self) -> None:
        """Make this process the command's: its streams, folder and environment."""
        for target, stream in enumerate(self.streams):
            os.dup2(stream, target)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (
            open(target, mode, buffering=1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            for target, mode, errors in ((0, "r", "strict"), (1, "w", "replace"), (2, "w", "backslashreplace"))
        )
        os.environ.clear()
        os.environ.update(self.environment)
        os.environ.pop(VARIABLE, None)
        os.chdir(self.folder)
        sys.argv = ["capsbench", *self.arguments]
        tempfile.tempdir = None  # that of the environment


class Worker:
    """Takes commands and forks a child for each, until its workflow is over and its children have ended."""

    def __init__(self, listening: socket.socket, lifeline: int):
        self._selector = selectors.DefaultSelector()
        self._listening, self._lifeline = listening, lifeline
        self._code, self._environment = _state_of_code(), dict(os.environ)  # which imports add to
        self._children: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of each: process, its command

    def serve(self) -> Request | None:
        """Serve to the end; returns None then, and in each child the request that it is to run."""
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._stop)
        while self._selector.get_map():
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # what came before has closed it
                if (request := key.data(key.fd)) is not None:
                    return request  # type: ignore[no-any-return]
        return None

    def _stop(self, _: int) -> None:
        """The workflow is over: take no more commands."""
        for source in (self._lifeline, self._listening):
            self._selector.unregister(source)
        self._listening.close()

    def _accept(self, _: int) -> Request | None:
        """Take a command; where that fails, its connection is closed, and it runs in its own process."""
        try:
            connection, _address = self._listening.accept()
        except OSError:
            return None
        streams = array.array("i")
        child = None
        try:
            connection.settimeout(5)
            request = self._read(connection, streams)
            child = None if request is None else os.fork()
            if child == 0:
                with suppress(Exception):
                    self._leave(connection)
                return request
            if child is not None:
                self._watch(child, connection)
        except (OSError, ValueError, KeyError, struct.error):
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            child = None
        finally:
            if child != 0:
                for stream in streams:
                    os.close(stream)
        if child is None:
            connection.close()
        return None

    def _watch(self, child: int, connection: socket.socket) -> None:
        descriptor = os.pidfd_open(child)
        self._children[descriptor] = (child, connection)
        self._selector.register(descriptor, selectors.EVENT_READ, self._ended)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._lost(child, connection))
        with suppress(OSError):
            connection.sendall(_NUMBER.pack(child))

    def _read(self, connection: socket.socket, streams: "array.array[int]") -> Request | None:
        """Read a request; None where it is not for this worker: of another package, other code or other libraries.

        Args:
            connection: of the command.
            streams: gets the descriptors that came with it.
        """
        size, ancillary, _, _ = connection.recvmsg(_NUMBER.size, socket.CMSG_SPACE(3 * streams.itemsize))
        for level, kind, found in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                streams.frombytes(found[: len(found) - len(found) % streams.itemsize])
        text = _receive(connection, _NUMBER.unpack(size)[0])
        given = {} if text is None else json.loads(text)
        same = (given.get("package"), given.get("python")) == (str(PACKAGE), sys.prefix)
        if len(streams) != 3 or not same or not self._is_current(given["environment"]):
            return None
        return Request(given["arguments"], given["folder"], given["environment"], (streams[0], streams[1], streams[2]))

    def _is_current(self, environment: Mapping[str, str]) -> bool:
        """Tell whether what this process imported is what a process with that environment would import now."""
        here, there = (
            {name: value for name, value in each.items() if name.startswith(_READ_BY_LIBRARIES)}
            for each in (self._environment, environment)
        )
        return here == there and _state_of_code() == self._code

    def _ended(self, descriptor: int) -> None:
        child, connection = self._children.pop(descriptor)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        with suppress(OSError):
            connection.sendall(_NUMBER.pack(code if code >= 0 else 128 - code))  # as a shell reports a signal
        connection.close()

    def _lost(self, child: int, connection: socket.socket) -> None:
        """The command was killed, so that nobody waits for the child."""
        self._selector.unregister(connection)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    def _leave(self, connection: socket.socket) -> None:
        """Give up, in a child, what belongs to the worker."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
        self._selector.close()
        self._listening.close()
        connection.close()
        with suppress(OSError):
            os.close(self._lifeline)
        for descriptor, (_, other) in self._children.items():
            os.close(descriptor)
            other.close()


def _state_of_code() -> dict[str, tuple[int, int]]:
    """Return time and size of each file of the package."""
    found = {}
    for path in PACKAGE.rglob("*"):
        if path.suffix in (".py", ".yaml", ".j2", ".css"):
            with suppress(FileNotFoundError):  # an editor replaces it
                state = path.stat()
                found[str(path)] = (state.st_mtime_ns, state.st_size)
    return found


def main(arguments: Sequence[str]) -> int:
    """Be a worker. arguments: the descriptors of the socket and of the lifeline, the folder of the socket, modules."""
    listening, lifeline, folder = socket.socket(fileno=int(arguments[0])), int(arguments[1]), Path(arguments[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(listening, lifeline)  # notes the state of the code before it is imported
    gc.disable()  # imports leave no garbage
    for name in arguments[3:]:
        with suppress(ImportError):
            importlib.import_module(name)
    if "capsbench.evaluation" in sys.modules:
        from capsbench.run.code_version import read_ahead

        with suppress(Exception):  # a file that is not Python; the command that needs it says so
            read_ahead()
    gc.collect()
    gc.freeze()  # so that collections in children do not copy what they share
    gc.enable()
    request = worker.serve()
    if request is None:
        for path in (folder / "worker", folder):
            with suppress(OSError):
                path.rmdir() if path == folder else path.unlink()
        return 0
    request.take_over()
    from capsbench.cli.commands import main as run_command

    status: Any = run_command(request.arguments)
    return _end(int(status))


def _end(status: int) -> NoReturn:
    """End a child, its threads and handlers first; taking apart all that it shares would cost a third of a second."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # whoever read it is gone, or the disk is full
            status = status or 1
    os._exit(status)
