"""Studies at the papers' protocols, for the tests of the tables."""

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
training: {epochs: 1000}
experiments:
  multimnist: {data: {name: multimnist}}
variants:
  capsnet: {model: capsnet, grid: {iterations: [1, 3]}}
"""
NOVEL = """\
name: novel
seeds: [0, 1, 2]
training: {epochs: 50, batch_size: 64, learning_rate: 0.003, lr_decay_every: 20000, stop_at_familiar_accuracy: 0.963}
experiments:
  azimuth: {data: {name: smallnorb, options: {view: azimuth}}}
variants:
  capsules: {model: matrix_capsnet}
  cnn: {model: cnn_hinton_norb}
"""
