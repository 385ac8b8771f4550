import time

import numpy as np
import pytest
import torch
from small_data import CPU, NOWHERE, data_of
from small_data import task_of as embedded_task

from capsbench.data import Raw, load, make_task
from capsbench.data.tasks.pairs import DRAWS, PairOptions, Pairs
from capsbench.study import Augmentation

NONE = Augmentation()


def raw_of(count=60, seed=0) -> Raw:
    """Digits whose 28x28 is nowhere 0, so that their place in 36x36 can be seen; class i mod 10."""
    images = np.random.default_rng(seed).integers(1, 256, (count, 1, 28, 28), dtype=np.uint8)
    return Raw(images, np.arange(count) % 10)


def task_of(raw=None, pairs=300, **options) -> Pairs:
    return Pairs(raw or raw_of(), PairOptions(**options), pairs, CPU)


def fixed(task):
    return task.eval_images(torch.arange(len(task.labels)))


def corners(sources):
    """Row and column of the upper left of each digit: sources [N, 2, 1, 36, 36] -> [N, 2, 2]."""
    ink = sources[:, :, 0] > 0
    return torch.stack([ink.any(dim=3).int().argmax(dim=2), ink.any(dim=2).int().argmax(dim=2)], dim=2)


def digit_numbers(raw, sources):
    """Which of the digits each source shows."""
    number = {image.tobytes(): n for n, image in enumerate(raw.images)}
    found = []
    for source, (top, left) in zip(sources.flatten(0, 1), corners(sources).flatten(0, 1).tolist(), strict=True):
        found.append(number[source[:, top : top + 28, left : left + 28].contiguous().numpy().tobytes()])
    return torch.tensor(found).view(len(sources), 2)


def an_epoch(task, seed=0, epoch=1, augmentation=NONE, batch_size=64):
    batches = list(task.train_batches(batch_size, augmentation, seed, epoch))
    return [torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels", "targets")]


@pytest.fixture(scope="module")
def embedded():
    torch.set_num_threads(1)  # what is of a module comes before what is of each test
    pairs = {"train_pairs": 700, "test_pairs": 400}
    return {split: load("multidigits", NOWHERE, split, **pairs) for split in ("train", "test")}


@pytest.mark.parametrize(("split", "pairs"), [("train", 700), ("test", 400)])
def test_a_split_is_so_many_pairs_with_two_sources_and_two_hot_labels(embedded, split, pairs):
    found = embedded[split]
    assert found.images.shape == (pairs, 1, 36, 36)
    assert found.sources.shape == (pairs, 2, 1, 36, 36)
    assert found.images.dtype == found.sources.dtype == torch.uint8
    assert found.labels.shape == (pairs, 10)
    assert set(found.labels.unique().tolist()) == {0, 1}
    assert (found.labels.sum(dim=1) == 2).all()
    assert found.factors == {}


def test_sizes_are_the_papers_unless_a_study_says_otherwise():
    data = data_of("multimnist")
    tasks = {split: make_task(data, raw_of(), split, CPU) for split in ("train", "validation", "test")}
    assert {split: (task.epoch_images, len(task.labels)) for split, task in tasks.items()} == {
        "train": (60_000, 60_000), "validation": (60, 60), "test": (10_000, 10_000),
    }  # fmt: skip


def test_two_digits_are_of_different_classes_the_lower_first():
    raw = raw_of()
    task = task_of(raw, 2000)
    assert (task.labels[:, 0] < task.labels[:, 1]).all()
    sources = fixed(task)[1]
    assert torch.equal(torch.from_numpy(raw.labels)[digit_numbers(raw, sources)], task.labels)
    _, labels, targets = an_epoch(task)
    assert (labels[:, 0] < labels[:, 1]).all()
    shown = digit_numbers(raw, (targets * 255).round().to(torch.uint8))
    assert torch.equal(torch.from_numpy(raw.labels)[shown], labels)


def test_labels_of_a_split_are_the_classes_of_its_sources(embedded):
    task = embedded_task("multidigits", "test", test_pairs=400)
    assert torch.equal(embedded["test"].labels.nonzero()[:, 1].view(400, 2), task.labels)
    assert torch.equal(embedded["test"].sources, fixed(task)[1])


@pytest.mark.parametrize(
    ("combine", "join"),
    [("sum", lambda s: s.int().sum(dim=1).clamp_max(255)), ("maximum", lambda s: s.amax(dim=1))],
)
def test_sources_are_laid_over_one_another(combine, join):
    task = task_of(combine=combine)
    images, sources = fixed(task)
    assert torch.equal(images, join(sources).to(torch.uint8))
    assert (sources.int().sum(dim=1) > 255).any()  # the clip acts
    seen, _, targets = an_epoch(task)
    joined = targets.sum(dim=1).clamp_max(1) if combine == "sum" else targets.amax(dim=1)
    torch.testing.assert_close(seen, joined)
    assert targets.min() >= 0
    assert targets.max() <= 1


@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("drawn", ["fixed", "training"])
def test_each_digit_is_shifted_by_itself_up_to_the_limit_either_way(shift, drawn):
    task = task_of(pairs=4000, shift=shift)
    sources = fixed(task)[1] if drawn == "fixed" else an_epoch(task)[2]
    offsets = corners(sources) - 4
    for digit in (0, 1):
        for axis in (0, 1):
            counts = (offsets[:, digit, axis] + shift).bincount(minlength=2 * shift + 1)
            assert len(counts) == 2 * shift + 1  # none beyond the limit, all that are within it
            assert counts.min() > 0.8 * 4000 / (2 * shift + 1)
    if shift == 4:  # digits and axes are independent
        assert len(offsets.flatten(1)[:, :2].unique(dim=0)) == 81
        assert torch.corrcoef(offsets.flatten(1).T.float()).fill_diagonal_(0).abs().max() < 0.07


def test_a_digit_is_whole_in_its_frame():
    raw = raw_of()
    sources = fixed(task_of(raw))[1]
    shown = torch.from_numpy(raw.images)[digit_numbers(raw, sources)]  # found by all their 28x28
    assert torch.equal(sources.int().sum(dim=(2, 3, 4)), shown.int().sum(dim=(2, 3, 4)))  # and nothing else


def test_test_pairs_are_fixed_by_seed_and_index():
    few, many, other = task_of(pairs=100), task_of(pairs=5000), task_of(pairs=100, pair_seed=1)
    assert all(torch.equal(one, more[:100]) for one, more in zip(fixed(few), fixed(many), strict=True))
    assert torch.equal(few.labels, many.labels[:100])
    assert not torch.equal(fixed(few)[0], fixed(other)[0])
    assert (few.labels != other.labels).any(dim=1).float().mean() > 0.5
    some = torch.tensor([70, 3])  # alone or among others
    assert torch.equal(many.eval_images(some)[0], fixed(many)[0][some])
    assert torch.equal(many.eval_batch(some, 0).labels, many.labels[some])


def test_training_pairs_are_drawn_anew_in_each_epoch_and_repeat_for_its_seed():
    task = task_of()
    first, again, next_epoch, other_seed = (an_epoch(task, *which) for which in ((0, 1), (0, 1), (0, 2), (1, 1)))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    shown = [{image.numpy().tobytes() for image in found[0]} for found in (first, next_epoch, other_seed)]
    assert len(shown[0]) == 300
    assert not shown[0] & shown[1]
    assert not shown[0] & shown[2]


def test_a_batch_does_not_show_the_test_pairs():
    task = task_of()
    drawn = {(image * 255).round().byte().numpy().tobytes() for image in an_epoch(task)[0]}
    assert not drawn & {image.numpy().tobytes() for image in fixed(task)[0]}


@pytest.mark.parametrize("pairs", [600, 60, 30])
def test_every_digit_comes_first_equally_often(pairs):
    task = task_of(pairs=pairs)
    first, _ = task._partners(torch.arange(pairs), torch.rand(pairs, dtype=torch.float64))
    counts = first.bincount(minlength=60)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == pairs


def test_the_other_digit_is_any_of_another_class_alike():
    labels = np.array([0] * 3 + [3] * 10 + [7] * 5 + [9] * 2)
    np.random.default_rng(0).shuffle(labels)
    raw = Raw(raw_of(20).images, labels)
    task, classes = task_of(raw), torch.from_numpy(labels)
    for first in range(20):
        draws = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(first))
        _, second = task._partners(torch.full((20_000,), first), draws)
        counts = second.bincount(minlength=20).double()
        others = classes != classes[first]
        assert (counts[~others] == 0).all()
        expected = 20_000 / others.sum()
        chi_square = ((counts[others] - expected) ** 2 / expected).sum() / (others.sum() - 1)
        assert chi_square < 3  # for 9 and more degrees of freedom p < 0.002 beyond it


def test_the_draws_at_the_ends_stay_in_range():
    task = task_of()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for draws in ends:
        sources, labels = task._place(torch.arange(60), draws.expand(60, DRAWS))
        assert (labels[:, 0] < labels[:, 1]).all()
        assert (corners(sources) == (8 if draws == 0 else 0)).all()


def test_one_class_makes_no_pairs():
    with pytest.raises(ValueError, match="at least two classes"):
        task_of(Raw(raw_of(5).images, np.zeros(5, np.int64)))


@pytest.mark.parametrize("split", ["train", "test"])
def test_pairs_of_a_split_are_made_of_its_own_digits(embedded, split):
    def trimmed(image):
        ink = image > 0
        rows, columns = ink.any(1).nonzero().flatten(), ink.any(0).nonzero().flatten()
        return image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].contiguous().numpy().tobytes()

    own = {trimmed(image[0]) for image in load("digits", NOWHERE, split).images}
    assert {trimmed(source[0]) for source in embedded[split].sources.flatten(0, 1)} <= own
    other = {trimmed(image[0]) for image in load("digits", NOWHERE, "test" if split == "train" else "train").images}
    assert not own & other


def test_frames_overlap_as_the_paper_states():
    task = task_of(pairs=20_000)
    overlap = task.frame_overlap()
    # offsets differ by 80/27 on average on each axis (uniform over nine): ((28 - 80/27) / 28) squared is 0.7996
    assert float(overlap.mean()) == pytest.approx(0.7996, abs=0.003)
    assert float(overlap.min()) == pytest.approx((20 / 28) ** 2)
    apart = (corners(fixed(task)[1][:200]).diff(dim=1).abs().squeeze(1)).double()
    torch.testing.assert_close(overlap[:200].double(), ((28 - apart[:, 0]) * (28 - apart[:, 1])) / 784)
    assert (task_of(shift=0).frame_overlap() == 1).all()


def test_targets_go_with_the_labels_in_fixed_batches_too():
    raw = raw_of()
    task = task_of(raw)
    for batch in task.eval_batches(128):
        shown = digit_numbers(raw, (batch.targets * 255).round().to(torch.uint8))
        assert torch.equal(torch.from_numpy(raw.labels)[shown], batch.labels)
        torch.testing.assert_close(batch.images, batch.targets.sum(dim=1).clamp_max(1))


def test_augmentation_acts_on_each_digit_by_itself():
    task = task_of(pairs=500, shift=0)
    images, _, targets = an_epoch(task, augmentation=Augmentation(shift=2))
    offsets = corners(targets) - 4
    assert set(offsets.flatten().tolist()) == {-2, -1, 0, 1, 2}
    assert (offsets[:, 0] != offsets[:, 1]).any(dim=1).float().mean() > 0.8
    torch.testing.assert_close(images, targets.sum(dim=1).clamp_max(1))
    whole = (targets > 0).flatten(2).sum(dim=2)
    assert (whole == 28 * 28).all()  # the frame has room for the shift: no ink is lost


def test_one_core_draws_at_least_50_000_training_pairs_a_second():
    """The promise is for two cores. Measured in processor time of one thread, which other work does not lengthen."""
    task = task_of(raw_of(60_000), 60_000)
    rng = torch.Generator().manual_seed(0)
    parts = torch.randperm(60_000, generator=rng).split(128)
    task.train_batch(parts[0], NONE, rng)
    fastest = 0.0
    for _ in range(5):
        begin = time.process_time()
        for part in parts[:40]:
            task.train_batch(part, NONE, rng)
        fastest = max(fastest, 40 * 128 / (time.process_time() - begin))
    assert fastest > 50_000
