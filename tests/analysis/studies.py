"""Studies for the tests of the analysis, most of them at the papers' protocols."""

import pandas as pd

from capsbench.analysis.tables import Table

FULL = """\
name: full
seeds: [0, 1, 2]
experiments:
  mnist: {data: {name: mnist}}
variants:
  capsnet: {model: capsnet}
"""
PAIRS = """\
name: pairs
seeds: [0, 1, 2]
experiments:
  multimnist: {data: {name: multimnist}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
"""
NOVEL = """\
name: novel
seeds: [0, 1, 2]
training: {steps: 350_000, batch_size: 64, learning_rate: 0.01, lr_decay_every: 20000, l2: 1.0e-7}
experiments:
  azimuth: {data: {name: smallnorb, options: {view: azimuth}}}
variants:
  capsules: {model: matrix_capsnet, training: {match: cnn}}
  cnn: {model: cnn_hinton_norb}
"""
TABLE1 = """\
name: full
seeds: [0]
training: {}
experiments:
  mnist: {data: {name: mnist}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3], decoder: [null, fully_connected]}}
  cnn: {model: cnn_sabour_mnist}
"""
EVERY_DATA_SET = """\
name: all
seeds: [0]
experiments:
  digits: {data: {name: digits}}
  pairs: {data: {name: multidigits}}
  cifar10: {data: {name: cifar10}}
  affine: {data: {name: affdigits}}
  placed: {data: {name: mnist-translated}}
  generated: {data: {name: affnist-generated}}
  official: {data: {name: affnist}}
  full: {data: {name: toynorb}}
  azimuth: {data: {name: toynorb, options: {view: azimuth}}}
  elevation: {data: {name: smallnorb, options: {view: elevation}}}
variants:
  capsnet: {model: capsnet}
"""
CNN_ALONE = """\
name: plain
seeds: [0, 1]
training: {epochs: 2}
experiments: {digits: {data: {name: digits, validation_images: 100}}}
variants: {cnn_matched: {model: cnn_matched}}
"""
MULTIDIGITS = """\
name: pairs
seeds: [0]
training: {epochs: 2}
experiments: {pairs: {data: {name: multidigits, validation_images: 100}}}
variants: {capsnet: {model: capsnet}, cnn: {model: cnn_matched}}
"""


def ours_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that are not of networks that papers alone have."""
    return table[table["planned"] > 0]


def text_of(table: Table, grid: int = 0) -> pd.DataFrame:
    """A grid as a data frame."""
    each = table.grids[grid]
    return pd.DataFrame([row.texts for row in each.rows], columns=list(each.columns))


FIVE = """\
name: five
seeds: [0, 1, 2, 3, 4]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
variants:
  capsnet: {model: capsnet, label: CapsNet, grid: {routing.iterations: [1, 2, 3]}}
"""
