"""Memory that a process keeps."""

import platform
import subprocess
import sys

import pytest

from capsbench.run import memory

COUNT = """
import resource, sys, torch
from capsbench.run.memory import keep_memory
assert sys.argv[1] == "as it is" or keep_memory()
def work():
    for _ in range(20):
        torch.ones(16 * 2**20)  # 64 MB, 16,384 pages
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_a_tensor_after_another_faults_no_pages_in():
    assert faults("kept") < 200
    assert faults("as it is") > 1000  # or there would be nothing to gain


def test_another_c_library_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("musl", "1.2"))
    assert memory.keep_memory() is False
