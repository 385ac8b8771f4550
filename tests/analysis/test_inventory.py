import re
import sys
import types

import pytest
import torch

from capsbench.analysis.inventory import groups, measure, overview, page, published_on, source
from capsbench.models import build_model, count_parameters
from capsbench.registry import MODELS, ROUTINGS

CONVOLUTIONS = 20 * 20 * 256 * 81 + 6 * 6 * 256 * (256 * 81)  # of CapsNet on 1x28x28
VOTES = 1152 * 8 * 10 * 16
DECODER = 160 * 512 + 512 * 1024 + 1024 * 784


@pytest.mark.parametrize(
    ("options", "products"),
    [
        # without stored votes a weighted sum and an agreement each take as many products as the votes would
        ({"decoder": None, "routing": {"iterations": 1}}, VOTES),
        ({"decoder": None, "routing": {"iterations": 3}}, 5 * VOTES),
        ({"routing": {"iterations": 3}}, 5 * VOTES + DECODER),
        # votes are stored, and their sum takes no product with a coupling
        ({"routing": "uniform"}, VOTES + DECODER),
    ],
    ids=str,
)
def test_multiply_adds_of_capsnet_are_those_counted_by_hand(options, products):
    assert measure("capsnet", **options).multiply_adds == CONVOLUTIONS + products


def test_multiply_adds_of_a_cnn_are_those_counted_by_hand():
    convolutions = 32 * 32 * 32 * (2 * 25) + 16 * 16 * 64 * (32 * 25)
    assert measure("cnn_hinton_norb").multiply_adds == convolutions + 64 * 8 * 8 * 1024 + 1024 * 5


@pytest.mark.parametrize("name", MODELS.names())
def test_every_network_has_a_size_on_its_papers_images(name):
    shape, classes = published_on(name)
    size = measure(name)
    assert (size.image_shape, size.num_classes, size.problem) == (shape, classes, "")
    assert size.multiply_adds > 0
    with torch.device("meta"):
        assert size.parameters == count_parameters(build_model(name, shape, classes))


@pytest.mark.parametrize("name", MODELS.names())
def test_the_first_sentence_of_every_file_names_its_paper(name):
    assert re.search(r"\b(19|20)\d\d\b", source(name)) or name == "cnn_matched" or "(no paper)" in source(name)
    assert len(source(name)) < 300
    assert source("cnn_hinton_norb").endswith("Frosst 2018 (H18), section 5.")


def test_other_images_and_classes_are_counted_for():
    size = measure("resnet20", (1, 28, 28), 7)
    assert (size.image_shape, size.num_classes) == ((1, 28, 28), 7)
    assert size.parameters == 269_722 - 2 * 9 * 16 - 3 * 65


def test_a_network_without_published_images_is_counted_on_mnist():
    assert published_on("resnet20") == ((3, 32, 32), 10)
    assert "published_on" not in MODELS["cnn_matched"].facts
    assert published_on("cnn_matched") == ((1, 28, 28), 10)


def test_the_overview_names_every_network_with_its_options():
    text = overview()
    for name in MODELS.names():
        assert len(re.findall(rf"^\| {name} ", text, re.MULTILINE)) == 1
        block = text.split(f"\n\n{name}: ")[1].split("\n\n")[0]
        options = set(MODELS.options(name).model_fields) - {"name"}
        assert [option for option in options if not re.search(rf"\b{option}\b", block)] == []
    assert re.search(r"\| capsnet +\| 1x28x28 +\| +10 \| +8,215,568 \| +208,179,200 \|\n", text)
    assert "| problem " not in text


def test_the_overview_has_a_line_of_names_for_each_group():
    lines = {" ".join(line.split()) for line in overview().splitlines()}
    assert "matched_to: capsnet (default), " in " ".join(lines)
    assert "loss: spread (default), margin, cross_entropy" in lines  # of matrix_capsnet
    assert "decoder: deconvolutional (default), null" in lines  # of deepcaps
    assert "widths [16, 32, 64], blocks 3, shortcut padding" in lines  # no group


def test_a_network_that_cannot_take_the_images_says_why_in_its_row():
    text = overview((1, 8, 8))
    assert re.search(
        r"\| capsnet +\| 1x8x8 +\|.* - \|.* - \| capsnet needs images of at least 17x17, not 8x8 +\|", text
    )
    assert re.search(r"\| resnet20 +\| 1x8x8 +\| +10 \| +269,434 \|", text)


def tables(text: str) -> dict[str, list[list[str]]]:
    """The tables of a page: name of the first column -> rows without it, each below what stands in that column."""
    found: dict[str, list[list[str]]] = {}
    for block in text.split("\n\n"):
        lines = [line.strip("|").split("|") for line in block.splitlines() if line.startswith("|")]
        if lines:
            found[lines[0][0].strip()] = [[cell.strip() for cell in cells] for cells in lines[2:]]
    return found


def rows_of(table: list[list[str]], member: str) -> list[list[str]]:
    """The rows of a group's table that belong to one member."""
    start = [row[0] for row in table].index(member)
    ends = [n for n, row in enumerate(table) if n > start and row[0]] or [len(table)]
    return [row[1:] for row in table[start : ends[0]]]


@pytest.fixture(scope="module")
def capsnet() -> dict[str, list[list[str]]]:
    return tables(page("capsnet"))


def test_a_page_has_types_and_defaults(capsnet):
    rows = {option: rest for option, *rest in capsnet["option"]}
    assert rows["conv_channels"] == ["whole number >= 1", "256"]
    assert rows["weight_std"] == ["number > 0", "0.1"]
    assert rows["routing"] == ["group, see below", "dynamic"]
    rows = {option: rest for option, *rest in tables(page("efficient_capsnet"))["option"]}
    assert rows["primary_kernel"] == ["whole number >= 1 or whole", "whole"]
    assert rows["activation"] == ["relu or leaky_relu", "relu"]


def test_a_page_has_a_table_of_each_group_with_the_options_of_its_members(capsnet):
    assert set(capsnet) == {"images", "option", "routing", "loss", "decoder", "transform"}
    assert {row[0] for row in capsnet["routing"]} == {*ROUTINGS.names(), ""}
    assert rows_of(capsnet["routing"], "sparse") == [
        ["8,215,568", "203,018,240", "iterations", "whole number >= 1, <= 100", "3"],
        ["", "", "keep", "whole number >= 1", "2"],
    ]
    assert rows_of(capsnet["routing"], "self") == [["8,319,248", "202,557,440", "-", "", ""]]
    assert [row[2:] for row in rows_of(capsnet["routing"], "dynamic")][1] == ["detach", "true or false", "false"]
    decoder = rows_of(capsnet["decoder"], "fully_connected")
    assert [row[2:] for row in decoder[:2]] == [
        ["hidden", "list of whole numbers >= 1", "[512, 1024]"], ["dropout", "number >= 0, < 1", "0.0"],
    ]  # fmt: skip
    assert rows_of(capsnet["decoder"], "null")[0][0] == f"{8_215_568 - 1_411_344:,}"


def test_defaults_of_a_group_are_those_of_the_network():
    for name, weight in [("capsnet", 0.0005), ("efficient_capsnet", 0.392)]:
        assert groups(name)["decoder"].options("fully_connected").weight == weight
    rows = rows_of(tables(page("efficient_capsnet"))["decoder"], "fully_connected")
    assert ["weight", "0.392"] in [[row[2], row[4]] for row in rows]


def test_a_network_without_groups_has_no_table_of_them():
    assert set(tables(page("resnet20"))) == {"images", "option"}
    assert groups("resnet20") == {}


def test_a_network_among_the_options_is_described_on_its_own_page():
    text = page("cnn_matched")
    assert "see capsbench models deepcaps" in text
    assert "cell_types" not in text


def test_a_group_that_cannot_be_off_has_no_null():
    assert groups("capsnet")["decoder"].optional
    assert "null" in groups("capsnet")["decoder"].choices
    assert not groups("capsnet")["routing"].optional
    assert "null" not in groups("capsnet")["routing"].choices


@pytest.fixture
def another(monkeypatch):
    """A network that a file of its own registers, for the time of a test."""
    module = types.ModuleType("another_file", "Another network of Nobody 2031. The rest.")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    network = type(
        "Another", (MODELS["resnet20"].factory,), {"__module__": module.__name__, "__doc__": "What it does."}
    )
    MODELS.register("another", title="Another", published_on=((1, 12, 12), 3))(network)
    yield
    del MODELS._entries["another"]


def test_a_new_network_shows_up_by_itself(another):
    assert re.search(r"\| another +\| 1x12x12 +\| +3 \|", overview())
    assert page("another").startswith("another: Another network of Nobody 2031.\n\nWhat it does.")
