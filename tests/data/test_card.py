import re

import numpy as np
import pytest
import torch
from PIL import Image
from small_data import CPU, NOWHERE, data_of, task_of

from capsbench.data import Raw, load
from capsbench.data.card import box_overlap, overlap_text, write_card
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers import digits
from capsbench.data.tasks.pairs import PairOptions, Pairs

# one data set of each kind of task, small: options, images of each split, width of a picture
CARDS = {
    "digits": ({}, {"train": 1258, "test": 539}, 28),
    "multidigits": ({"train_pairs": 400, "test_pairs": 300}, {"train": 400, "test": 300}, 3 * 36),
    "affdigits": ({"transforms_per_image": 2}, {"train": 1258, "familiar": 539, "test": 1078}, 40),
    "toynorb": ({"lightings": 1, "view": "azimuth"}, {"train": 1350, "familiar": 1350, "test": 2700}, 2 * 48),
    "toynorb-centred": ({"lightings": 1, "view": "azimuth"}, {"train": 1350, "familiar": 1350, "test": 2700}, 2 * 48),
}
every_card = pytest.mark.parametrize("name", CARDS)


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """The text and the picture of each card."""
    torch.set_num_threads(1)  # what is of a module comes before what is of each test
    folder = tmp_path_factory.mktemp("cards") / "new"
    return {name: write_card(data_of(name, **options), NOWHERE, folder) for name, (options, *_) in CARDS.items()}


def table_below(text, heading):
    """Rows of the table below a line, as lists of cells."""
    lines = text.split(heading, 1)[1].strip().split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


def test_there_is_a_card_here_of_each_kind():
    kinds = {name: facts.task.__module__ for name, facts in CATALOGUE.items()}
    assert {kinds[name] for name in (*CARDS, "cifar10")} == set(kinds.values())  # cifar10's is below


@every_card
def test_a_card_is_a_text_and_a_picture_named_like_the_data_set(cards, name):
    text, sheet = cards[name]
    assert (text.name, sheet.name) == (f"{name}.md", f"{name}.png")
    assert f"({name}.png)" in text.read_text()


@every_card
def test_a_card_says_where_the_data_come_from_and_under_which_options(cards, name):
    text, facts = cards[name][0].read_text(), CATALOGUE[name]
    options, *_ = CARDS[name]
    shape = " x ".join(map(str, facts.image_shape))
    for line in (
        f"# {name}: {facts.title}", f"- source: {facts.source}", f"- licence: {facts.licence}",
        f"- a network sees: {shape} (channels, height, width)",
    ):  # fmt: skip
        assert f"{line}\n" in text
    (said,) = re.findall(r"- options: (.*)\n", text)
    assert all(f"{key} {value}" in said for key, value in options.items()) if options else said == "none"
    assert "not the official files" not in text


@every_card
def test_a_card_counts_images_and_classes(cards, name):
    text = cards[name][0].read_text()
    options, splits, _ = CARDS[name]
    objects = CATALOGUE[name].objects
    header, *rows = table_below(text, "Pairs in which each class is:" if objects == 2 else "Images of each class:")
    assert header == ["split", "images", *CATALOGUE[name].classes]
    assert {row[0]: int(row[1]) for row in rows} == splits
    for split, images, *by_class in rows:
        assert sum(map(int, by_class)) == objects * int(images)
        labels = load(name, NOWHERE, split, **options).labels
        labels = labels.sum(dim=0) if objects == 2 else labels.bincount()
        assert list(map(int, by_class)) == labels.tolist()


@every_card
def test_a_card_counts_the_pixels(cards, name):
    options, splits, _ = CARDS[name]
    header, *rows = table_below(cards[name][0].read_text(), "with mean and std:")
    assert header[1] == "0-31"
    assert header[-3:] == ["224-255", "mean", "std"]
    for split, *shares, mean, std in rows:
        pixels = load(name, NOWHERE, split, **options).images.double()
        assert sum(map(float, shares)) == pytest.approx(100, abs=0.5)
        assert float(shares[0]) == pytest.approx(100 * float((pixels < 32).double().mean()), abs=0.051)
        assert float(mean) == pytest.approx(float(pixels.mean()), abs=0.0051)
        assert float(std) == pytest.approx(float(pixels.std()), abs=0.0051)
    assert len(rows) == len(splits)


@every_card
def test_a_card_has_the_fingerprint_of_each_split(cards, name):
    header, *rows = table_below(cards[name][0].read_text(), "the images are made from):")
    assert header == ["split", "made from", "sha256"]
    assert [row[0] for row in rows] == list(CARDS[name][1])
    assert all(re.fullmatch(r"`[0-9a-f]{64}`", row[2]) for row in rows)
    if name == "digits":
        assert rows[1][1:] == ["539 images", f"`{load(name, NOWHERE, 'test').fingerprint}`"]


def test_a_card_counts_the_factors(cards):
    header, *rows = table_below(cards["toynorb"][0].read_text(), "Images by azimuth:")
    counts = {row[0]: dict(zip(header[1:], map(int, row[1:]), strict=True)) for row in rows}
    assert {value for value, count in counts["train"].items() if count} == {"0", "2", "4", "30", "32", "34"}
    assert counts["train"]["0"] == 225
    assert counts["test"] == {value: 0 if counts["train"][value] else 225 for value in counts["train"]}
    assert "Images by" not in cards["digits"][0].read_text()


@every_card
def test_the_picture_shows_ten_examples_of_each_class_in_every_split(cards, name):
    _, splits, width = CARDS[name]
    facts = CATALOGUE[name]
    with Image.open(cards[name][1]) as sheet:
        sheet.load()
        pixels = np.asarray(sheet)
    classes = 9 if facts.objects == 2 else facts.num_classes  # a pair is shown under its lower class
    channels, height, seen = facts.image_shape
    side = 48 if CATALOGUE[name].in_stereo else height
    fixed = len(splits) * (22 + 2 * classes * (side + 2))
    training = 22 + 2 * 3 * (height + 2)
    assert pixels.shape == (fixed + training, 2 * 10 * (max(width, channels * seen) + 2), 3)
    assert pixels.std() > 20  # something is drawn
    first = pixels[22 : 22 + 2 * (height + 2), : 2 * (channels * seen + 2)]
    assert first.std() > 5


def test_the_card_of_pairs_states_the_overlap(cards):
    text = cards["multidigits"][0].read_text()
    frames, boxes = map(
        float,
        re.search(
            r"measured on 300 test pairs: ([\d.]+) % of their 28x28 frames, ([\d.]+) % of the 20x20 boxes .*80 %.*\n",
            text,
        ).groups(),
    )
    assert 76 < frames < 84
    assert boxes < frames - 4
    task = task_of("multidigits", "test", test_pairs=300)
    assert frames == pytest.approx(100 * float(task.frame_overlap().mean()), abs=0.051)
    assert boxes == pytest.approx(100 * float(task.frame_overlap(20).mean()), abs=0.051)
    smaller, tenth, union = map(
        float,
        re.search(
            r"ink: ([\d.]+) % of the smaller one on average \(10th percentile (\d+) %\), intersection over union "
            r"([\d.]+)\n",
            text,
        ).groups(),
    )
    assert tenth < smaller < 100
    assert 0 < union < smaller / 100
    assert "overlap" not in cards["digits"][0].read_text()


@pytest.mark.parametrize(("shift", "others"), [(4, {6}), (6, {4}), (8, {4, 6})])
def test_the_overlap_is_measured_at_the_papers_and_the_generators_shift_too(shift, others):
    raw = Raw(np.full((10, 1, 28, 28), 9, np.uint8), np.arange(10))
    text = overlap_text(Pairs(raw, PairOptions(shift=shift), 20_000, CPU))
    measured = {shift: text[0], **{int(line.split("shift ")[1][0]): line for line in text[1:-1]}}
    assert set(measured) == {shift} | others
    expected = {4: (80.0, 72.6), 6: (71.6, 61.6), 8: (63.4, 51.4)}
    for each, line in measured.items():
        found = re.search(r"([\d.]+) % of their 28x28 frames, ([\d.]+) % of the 20x20 boxes", line).groups()
        assert list(map(float, found)) == pytest.approx(expected[each], abs=0.6)


def test_the_overlap_of_boxes_by_hand():
    one, other = torch.zeros(2, 3, 36, 36, dtype=torch.uint8)
    one[:, 10:20, 10:14] = 9  # 10 x 4
    other[0, 15:20, 12:22] = 9  # 5 x 10, of which 5 x 2 are shared
    other[1, 12:14, 11:13] = 9  # inside
    other[2, 30:32, 10:14] = 9  # below
    share, union = box_overlap(one, other)
    torch.testing.assert_close(share, torch.tensor([10 / 40, 1.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(union, torch.tensor([10 / 80, 4 / 40, 0.0], dtype=torch.float64))


def test_a_card_of_unofficial_files_says_so(in_catalogue, tmp_path):
    raw = digits.read(NOWHERE, "test")
    copy = Raw(raw.images, raw.labels, {}, ("train-images: md5 12, the official file's is 34",))
    in_catalogue("mnist", read=lambda *_: copy, download=lambda folder: None)
    text, _ = write_card(data_of("mnist", allow_unofficial=True), tmp_path, tmp_path / "cards")
    assert "- **not the official files**: train-images: md5 12, the official file's is 34\n" in text.read_text()


def test_a_card_lists_the_raw_files(cards, in_catalogue, tmp_path):
    raw = digits.read(NOWHERE, "test")
    parts = {split: Raw(raw.images, raw.labels, files={f"{split}-images": split * 3}) for split in ("train", "test")}
    in_catalogue("mnist", read=lambda folder, split, *_: parts[split], download=lambda folder: None)
    text, _ = write_card(data_of("mnist"), tmp_path, tmp_path / "cards")
    assert table_below(text.read_text(), "of the uncompressed bytes of a .gz):") == [
        ["file", "hash"], ["train-images", "`traintraintrain`"], ["test-images", "`testtesttest`"],
    ]  # fmt: skip
    assert "Raw files" not in cards["digits"][0].read_text()


def test_unknown_poses_are_named_in_the_table(in_catalogue, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (50, 2, 48, 48), dtype=np.uint8)
    copy = Raw(images, np.arange(50) % 5, {"azimuth": np.full(50, -1)}, ("a copy",))
    in_catalogue("smallnorb", read=lambda *_: copy, download=lambda folder: None)
    text, _ = write_card(data_of("smallnorb", allow_unofficial=True), tmp_path, tmp_path / "cards")
    assert table_below(text.read_text(), "Images by azimuth (-1: unknown):") == [
        ["split", "-1"], ["train", "50"], ["test", "50"],
    ]  # fmt: skip


def test_a_card_of_colour_images_shows_them_in_colour(in_catalogue, tmp_path):
    images = np.zeros((100, 3, 32, 32), np.uint8)
    images[:, 0] = 250
    raw = Raw(images, np.arange(100) % 10)
    in_catalogue("cifar10", read=lambda *_: raw, download=lambda folder: None)
    text, sheet = write_card(data_of("cifar10"), tmp_path, tmp_path / "cards")
    assert [row[:2] for row in table_below(text.read_text(), "Images of each class:")[1:]] == [
        ["train", "100"], ["test", "100"],
    ]  # fmt: skip
    with Image.open(sheet) as shown:
        pixels = np.asarray(shown)
    assert (pixels.reshape(-1, 3) == (250, 0, 0)).all(axis=1).mean() > 0.7
