"""Studies for the tests of the analysis, most of them at the papers' protocols."""

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
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
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
