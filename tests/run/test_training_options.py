import pytest
import torch
from small_runs import go, metrics, run_of, same_weights, weights

from capsbench.losses import MarginLoss
from capsbench.models.capsnet import CapsNet
from capsbench.registry import MODELS
from capsbench.run import train as module
from capsbench.streams import stream_seed
from capsbench.study import Training


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_a_training_of_steps_cuts_its_last_epoch_short(tmp_path, steps):
    """Three batches of 32 make an epoch."""
    _, folder = go(run_of(tmp_path, steps=steps), tmp_path / "r")
    rows, record = metrics(folder), folder.read_record()
    assert [int(row["step"]) for row in rows] == {2: [2], 3: [3], 7: [3, 6, 7]}[steps]
    assert [int(row["images"]) for row in rows] == {2: [64], 3: [96], 7: [96, 96, 32]}[steps]
    assert (record["epochs"], record["steps"], record["images"]) == (len(rows), steps, 32 * steps)
    assert record["config"]["training"]["steps"] == steps


def test_steps_and_epochs_of_the_same_length_give_the_same_bytes(tmp_path):
    (_, by_steps), (_, by_epochs) = (
        go(run_of(tmp_path, **length), tmp_path / name)
        for name, length in (("steps", {"steps": 9}), ("epochs", {"epochs": 3}))
    )
    assert metrics(by_steps) == metrics(by_epochs)
    assert by_steps.model_path.read_bytes() == by_epochs.model_path.read_bytes()


def test_a_cut_epoch_is_measured_over_the_images_that_it_showed(tmp_path):
    """The mean of a cut epoch is that of its steps: those of the whole epoch before its last step."""
    seen = []
    loss = CapsNet.loss

    def spy(self, output, targets, labels):
        parts = loss(self, output, targets, labels)
        if self.training:
            right = (output.scores.argmax(1) == labels).float().mean()
            seen.append((parts["margin"].item(), right.item()))
        return parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapsNet, "loss", spy)
        row = last_row(tmp_path, "cut", steps=5)
    assert len(seen) == 5
    assert float(row["train_margin_loss"]) == pytest.approx(sum(margin for margin, _ in seen[3:]) / 2)
    assert float(row["train_accuracy"]) == pytest.approx(sum(accuracy for _, accuracy in seen[3:]) / 2)


def test_losses_are_told_how_long_the_training_is(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(MarginLoss, "begin", lambda self, *arguments: told.append(arguments))
    go(run_of(tmp_path), tmp_path / "absolute")
    go(run_of(tmp_path, schedule="scaled", schedule_steps=90), tmp_path / "scaled")
    assert told == [(9, 1.0), (9, 10.0)]


def test_l2_adds_the_squares_of_all_kernels_to_the_loss(tmp_path):
    run = run_of(tmp_path, steps=1, l2=0.25)
    torch.manual_seed(stream_seed(run.seed, "initialisation"))
    model = MODELS.build(run.model, run.data.image_shape, 10, **run.options)
    squares = sum(float(p.detach().double().square().sum()) for p in model.parameters() if p.ndim > 1)
    row, plain = metrics(go(run, tmp_path / "r")[1])[0], last_row(tmp_path, "plain", steps=1)
    assert float(row["train_l2_loss"]) == pytest.approx(0.25 * squares, rel=1e-5)
    assert float(row["train_loss"]) == pytest.approx(float(plain["train_loss"]) + 0.25 * squares, rel=1e-5)
    assert "train_l2_loss" not in plain


def test_l2_shrinks_kernels_and_leaves_biases(tmp_path):
    options = {"learning_rate": 0.003}
    plain, shrunk = (weights(go(run_of(tmp_path, l2=l2, **options), tmp_path / str(l2))[1]) for l2 in (0.0, 1.0))
    kernels = [name for name, value in plain.items() if value.ndim > 1]
    assert kernels and all(shrunk[name].norm() < 0.9 * plain[name].norm() for name in kernels)


def last_row(tmp_path, name, **training):
    return metrics(go(run_of(tmp_path, **training), tmp_path / name)[1])[-1]


# option, its value, and what else both runs must have for it to act
ACTING = [
    ("steps", 8, {"steps": 9}),
    ("epochs", 2, {}),
    ("batch_size", 16, {}),
    ("learning_rate", 0.002, {}),
    ("lr_decay", 0.5, {"lr_decay_every": 2}),
    ("lr_decay_every", 1, {}),
    ("lr_decay_unit", "epoch", {"lr_decay_every": 1}),
    ("lr_decay_staircase", True, {"lr_decay_every": 4}),
    ("lr_floor", 0.001, {"lr_decay_every": 1}),
    ("schedule", "scaled", {}),
    ("schedule_steps", 90_000, {"schedule": "scaled"}),
    ("warmup_steps", 6, {}),
    ("weight_decay", 0.5, {}),
    ("l2", 0.01, {}),
    ("gradient_clip", 0.01, {}),
    ("augmentation", {"shift": 0}, {}),
    ("precision", "bfloat16", {}),
    ("augmentation", {"rotation": 20}, {}),
    ("augmentation", {"flip": True}, {}),
]
# tested on their own: what stops a training, and what it computes with
OTHERS = {"early_stopping", "match", "match_every", "device", "threads", "deterministic", "compile"}


@pytest.mark.parametrize(("option", "value", "both"), ACTING, ids=str)
def test_every_option_of_training_acts(tmp_path, option, value, both):
    plain, changed = last_row(tmp_path, "plain", **both), last_row(tmp_path, "changed", **{**both, option: value})
    assert plain["train_loss"] != changed["train_loss"]


def test_no_option_of_training_is_left_out():
    assert {option for option, _, _ in ACTING} | OTHERS == set(Training.model_fields)


def test_gradient_clipping_bounds_the_step(tmp_path, monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def spy(self, *arguments):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    row = last_row(tmp_path, "clipped", gradient_clip=0.01, epochs=1)
    assert max(norms) <= 0.01001
    assert float(row["gradient_norm"]) > 0.01  # what is logged is the norm before clipping


def test_weight_decay_shrinks_weights(tmp_path):
    plain = weights(go(run_of(tmp_path), tmp_path / "a")[1])["conv.weight"]
    decayed = weights(go(run_of(tmp_path, weight_decay=5.0), tmp_path / "b")[1])["conv.weight"]
    assert decayed.norm() < 0.99 * plain.norm()


def test_early_stopping_keeps_the_best_epoch_of_the_validation_set(tmp_path, monkeypatch):
    accuracies = iter([0.2, 0.5, 0.4, 0.5, 0.9, 0.9])
    states = []

    def validate(model, task, objects):
        states.append({k: v.clone() for k, v in model.state_dict().items()})
        return {"loss": 1.0, "accuracy": next(accuracies)}

    monkeypatch.setattr(module, "validate", validate)
    _, folder = go(run_of(tmp_path, epochs=6, early_stopping=2), tmp_path / "r")
    record = folder.read_record()
    assert (record["epochs"], record["kept_epoch"]) == (4, 2)
    assert same_weights(weights(folder), states[1])


def test_without_early_stopping_the_last_epoch_is_kept(tmp_path):
    _, folder = go(run_of(tmp_path), tmp_path / "r")
    assert folder.read_record()["kept_epoch"] == 3


def test_without_a_validation_set_its_columns_are_empty(tmp_path):
    _, folder = go(run_of(tmp_path, data={"validation_images": 0}), tmp_path / "r")
    assert {row["validation_accuracy"] for row in metrics(folder)} == {""}


def test_the_decoder_is_given_labels_in_training_and_none_in_validation(tmp_path, monkeypatch):
    given = []
    forward = CapsNet.forward
    monkeypatch.setattr(
        CapsNet, "forward", lambda self, x, y=None: given.append((self.training, y is not None)) or forward(self, x, y)
    )
    go(run_of(tmp_path, epochs=1), tmp_path / "r")
    assert set(given) == {(True, True), (False, False)}
