"""How long a training is, and the learning rate at each of its steps."""

import math

from capsbench.study import Training


class Schedule:
    """The length of one training.

    Attributes:
        steps: of the whole training.
        steps_per_epoch: the last epoch of a training may have fewer.
        epochs: begun ones, the last one included.
        stretch: how many steps of the schedule a step counts for: 1, unless `schedule` is scaled.
    """

    def __init__(self, training: Training, images_per_epoch: int):
        self._training = training
        self.steps = training.total_steps(images_per_epoch)
        self.steps_per_epoch = training.steps_per_epoch(images_per_epoch)
        self.epochs = math.ceil(self.steps / self.steps_per_epoch)
        self.stretch = training.schedule_steps / self.steps if training.schedule == "scaled" else 1.0

    def learning_rate(self, step: int) -> float:
        """Return the rate of the step with this number, from 0."""
        return learning_rate(self._training, step, self.steps_per_epoch, self.stretch)

    def looks(self, step: int) -> bool:
        """Tell whether the familiar test is looked at after this number of steps, where a run is matched to another."""
        return step % self._training.match_every == 0 or step == self.steps


def learning_rate(training: Training, step: int, steps_per_epoch: int, stretch: float = 1.0) -> float:
    """Return the rate at a step (from 0): warm-up, then exponential decay down to a floor.

    S17's authors' code decays smoothly by 0.96 every 2000 steps. With `lr_decay_unit` epoch the same holds for
    epochs, which a smooth decay counts in fractions. stretch: each step counts for this number of steps of the decay;
    the warm-up is always in steps of the training itself.
    """
    time = step * stretch
    if training.lr_decay_unit == "epoch":
        time /= steps_per_epoch
    time /= training.lr_decay_every
    if training.lr_decay_staircase:
        time = math.floor(time)
    rate: float = max(training.learning_rate * training.lr_decay**time, training.lr_floor)
    if step < training.warmup_steps:
        rate *= (step + 1) / training.warmup_steps
    return rate
