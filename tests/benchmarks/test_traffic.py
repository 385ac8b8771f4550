import pytest
import torch

from capsbench.benchmarks.traffic import traffic_of
from capsbench.models.matrix_capsnet import MatrixCapsNet

KERNELS = {
    "log_norms",
    "moments",
    "fit",
    "fit_gradients",
    "group_gradients",
    "parent_gradients",
    "map_gradients",
    "fold",
}


def test_an_operation_counts_what_it_reads_and_writes():
    a, b = torch.zeros(3, 5), torch.zeros(5)

    def step():
        torch.add(a, b)  # 15 + 5 read, 15 written
        a.mul_(a)  # 15 read, twice by the same operation, and written
        a.t().unsqueeze(0).expand(4, 5, 3)  # views
        torch.empty(1000)
        b.expand(7, 5).sum()  # 5 read, 1 written

    traffic = traffic_of(step)
    assert traffic.bytes == {"add": 4 * 35, "mul_": 4 * 30, "sum": 4 * 6}
    assert sum(traffic.launches.values()) == 3


@pytest.mark.parametrize(("competition", "most"), [("positions", 3.2), ("parents", 2.3)])
def test_a_step_of_matrix_capsules_moves_at_most_5_gigabytes(competition, most):
    pytest.importorskip("triton")
    batch = 64
    network = MatrixCapsNet((2, 32, 32), 5, competition=competition)  # 32, 32, (32, 32); three iterations
    images, labels = torch.rand(batch, 2, 32, 32), torch.arange(batch) % 5

    def step():
        (loss,) = network.loss(network(images), images, labels).values()
        loss.backward()

    traffic = traffic_of(step)
    assert {name.removeprefix("em.") for name in traffic.bytes if name.startswith("em.")} == KERNELS
    assert sum(traffic.bytes.values()) < most * 1e9
    assert most < 5  # what is asked for
    assert sum(traffic.launches.values()) < 320
