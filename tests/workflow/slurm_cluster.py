"""A Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in a folder of their own.

Nothing of it outlives `stop`, or the process that started it. Jobs and the commands on the nodes read
/etc/slurm/slurm.conf, which is a link into the folder as long as the cluster runs.
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

CONFIG = Path("/etc/slurm/slurm.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
MARK = "CAPSBENCH_TEST_CLUSTER"  # in the environment of all that runs in it
NODES = ("n1", "n2")
_PORTS = {"slurmctld": 17000, "n1": 17001, "n2": 17002}
# Each node has a GPU as far as Slurm knows; with --exclusive a job has all its cores. A node that does not answer is
# lost after 10 s.
_SLURM_CONF = """\
ClusterName=capsbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[slurmctld]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=10
KillWait=2
InactiveLimit=0
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[n1]} CPUs=2 RealMemory=100000 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[n2]} CPUs=2 RealMemory=100000 Gres=gpu:1
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return why no cluster can be started here, and what to do about it; None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no Slurm here ({', '.join(missing)}): apt-get install slurm-wlm munge"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "no snakemake-executor-plugin-slurm here: pip install 'capsbench[slurm]'"
    if os.geteuid() != 0:
        return "slurmctld and slurmd of this test start as root alone: sudo make test-all"
    if CONFIG.exists() and MARK not in CONFIG.read_text():
        return f"this machine has a Slurm of its own: {CONFIG}"
    return None


class Cluster:
    """Runs from `start` to `stop`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {MARK: str(folder), "PATH": _path()}
        self._daemons: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        (self.folder / "state").mkdir()
        self.folder.chmod(0o755)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        host = socket.gethostname().split(".")[0]
        text = f"# {MARK}\n" + _SLURM_CONF.format(host=host, folder=self.folder, ports=_PORTS)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.unlink(missing_ok=True)  # of a test that was killed
        CONFIG.symlink_to(self.folder / "slurm.conf")
        files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munge.log", "pid-file": "munge.pid"}
        files["seed-file"] = "munge.seed"
        self._run("munged", "--foreground", "--force", *(f"--{k}={self.folder / v}" for k, v in files.items()))
        _wait_until(lambda: (self.folder / "munge.socket").exists(), 20, "munged answers")
        self._run("slurmctld", "-D", "-i")
        for node in NODES:
            self.start_node(node)
        _wait_until(lambda: self.states() == dict.fromkeys(NODES, "idle"), 60, "the nodes are idle")

    def start_node(self, node: str) -> None:
        self._run("slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))  # gres.conf lies beside it

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            if CONFIG.readlink() == self.folder / "slurm.conf":
                CONFIG.unlink()
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        # jobs, and what holds them on a node; a killed parent may just have started one more
        while found := self._processes():
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)

    def command(self, *words: str) -> str:
        """Run a command of Slurm -> what it prints."""
        environment = os.environ | self.environment
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=30, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node; empty where the controller does not answer yet."""
        with contextlib.suppress(AssertionError):
            return dict(line.split() for line in self.command("sinfo", "-N", "-h", "-o", "%N %T").splitlines())
        return {}

    def jobs(self) -> list[dict[str, str]]:
        """Return the jobs that wait or run, with their fields in the words of `scontrol show job`."""
        lines = self.command("scontrol", "--oneliner", "show", "job").splitlines()
        jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return [job for job in jobs if job.get("JobState") in ("PENDING", "RUNNING", "COMPLETING")]

    def log(self) -> str:
        """Return the end of what each daemon wrote."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in files)

    def _run(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("a") as out:
            daemon = subprocess.Popen(
                words, env=os.environ | self.environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                preexec_fn=functools.partial(ctypes.CDLL(None).prctl, 1, int(signal.SIGKILL), 0, 0, 0),
            )  # fmt: skip
        self._daemons[" ".join(words)] = daemon

    def _processes(self) -> list[int]:
        """Return the processes of this cluster: by their environment or, where slurmstepd overwrote it, by the log."""
        mark = f"{MARK}={self.folder}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = mark in (process / "environ").read_bytes().split(b"\0")
                if marked or any(str(fd.readlink()).startswith(f"{self.folder}/") for fd in (process / "fd").iterdir()):
                    found.append(int(process.name))
        return [process for process in found if process != os.getpid()]


def _path() -> str:
    """Return the PATH with the folders of daemons."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _wait_until(holds, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds} s not yet: {what}"
        time.sleep(0.1)
