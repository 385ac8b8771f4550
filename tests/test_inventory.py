import inspect
import re
from pathlib import Path

import pytest
import torch

from capsbench import inventory
from capsbench.config import load_plan
from capsbench.errors import InputError
from capsbench.inventory import check_networks, measure, overview, page, published_on, source
from capsbench.models import build_model, count_parameters
from capsbench.options import model_class_name, model_names, model_options, routing_names

CONVOLUTIONS = 20 * 20 * 256 * 81 + 6 * 6 * 256 * (256 * 81)  # of CapsNet on 1x28x28
VOTES = 1152 * 8 * 10 * 16
DECODER = 160 * 512 + 512 * 1024 + 1024 * 784


@pytest.mark.parametrize(
    ("options", "products"),
    [
        # without stored votes a weighted sum and an agreement each take as many products as the votes would
        ({"reconstruction": False, "iterations": 1}, VOTES),
        ({"reconstruction": False, "iterations": 3}, 5 * VOTES),
        ({"iterations": 3}, 5 * VOTES + DECODER),
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


@pytest.mark.parametrize("name", model_names())
def test_every_network_has_a_size_on_its_papers_images(name):
    shape, classes = published_on(name)
    size = measure(name)
    assert (size.image_shape, size.num_classes, size.problem) == (shape, classes, "")
    assert size.multiply_adds > 0
    with torch.device("meta"):
        assert size.parameters == count_parameters(build_model(name, shape, classes))


@pytest.mark.parametrize("name", model_names())
def test_the_docstring_of_every_network_says_the_count_that_it_has(name):
    network = getattr(inventory._module(name), model_class_name(name))
    assert f"{measure(name).parameters:,}" in inspect.getdoc(network)


@pytest.mark.parametrize("name", model_names())
def test_the_first_sentence_of_every_file_names_its_paper(name):
    assert re.search(r"\b(19|20)\d\d\b", source(name)) or name == "cnn_matched"
    assert len(source(name)) < 300
    assert source("cnn_hinton_norb").endswith("Frosst 2018 (H18), section 5.")


def test_other_images_and_classes_are_counted_for():
    size = measure("resnet20", (1, 28, 28), 7)
    assert (size.image_shape, size.num_classes) == ((1, 28, 28), 7)
    assert size.parameters == 269_722 - 2 * 9 * 16 - 3 * 65


def test_a_network_without_published_images_is_counted_on_mnist(monkeypatch):
    assert published_on("resnet20") == ((3, 32, 32), 10)
    monkeypatch.delattr("capsbench.models.resnet20.PUBLISHED_ON")
    assert published_on("resnet20") == ((1, 28, 28), 10)


def test_the_overview_names_every_network_with_its_options():
    text = overview()
    for name in model_names():
        assert len(re.findall(rf"^\| {name} ", text, re.MULTILINE)) == 1
        block = text.split(f"\n\n{name}: ")[1].split("\n\n")[0]
        assert [option for option in model_options(name).model_fields if option not in block] == []
    assert re.search(r"\| capsnet +\| 1x28x28 +\| +10 \| +8,215,568 \| +208,179,200 \|\n", text)
    assert "why not" not in text
    assert "opponent capsnet, opponent_options {}, dropout 0.5" in text


def test_a_network_that_cannot_take_the_images_says_why_in_its_row():
    text = overview((1, 8, 8))
    assert re.search(
        r"\| capsnet +\| 1x8x8 +\|.* - \|.* - \| capsnet needs images of at least 17x17, not 8x8 +\|", text
    )
    assert re.search(r"\| resnet20 +\| 1x8x8 +\| +10 \| +269,434 \|", text)


def test_a_page_has_types_and_defaults_and_the_routings():
    text = page("capsnet")
    rows = {cells[0].strip(): cells[1:] for line in text.splitlines() if len(cells := line.strip("|").split("|")) > 1}
    assert [cell.strip() for cell in rows["decoder_hidden"]] == ["list of whole number >= 1", "[512, 1024]"]
    assert [cell.strip() for cell in rows["decoder_dropout"]] == ["number >= 0, < 1", "0.0"]
    assert [cell.strip() for cell in rows["reconstruction"]] == ["true or false", "true"]
    assert set(routing_names()) <= rows.keys()
    assert rows["sparse"][-1].strip() == "iterations 3, keep 2"
    assert rows["self"][2].strip() == "8,319,248"


def test_a_network_without_the_choice_has_no_table_of_routings():
    text = page("efficient_capsnet")
    assert "| routing | " not in text
    assert re.search(r"\| primary_kernel +\| whole number >= 1 or whole +\| whole +\|", text)


def test_networks_that_cannot_be_built_are_found_before_anything_trains(tmp_path):
    def plan(text):
        (tmp_path / "study.yaml").write_text(text)
        return load_plan(tmp_path / "study.yaml")

    text = """\
name: study
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants:
  good: {model: capsnet}
  bad: {model: capsnet, options: {transform: grouped, groups: 7}}
"""
    with pytest.raises(InputError, match="digits/bad: 1152 capsules cannot be cut into 7 groups of one size"):
        check_networks(plan(text), "digits")
    check_networks(plan(text.replace("groups: 7", "groups: 8")), "digits")


@pytest.mark.parametrize("study", sorted((Path(__file__).parents[1] / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_network_of_the_shipped_studies_can_be_built(study):
    plan = load_plan(study)
    for experiment in plan.study.experiments:
        check_networks(plan, experiment)
