"""What the summaries of committed studies show: which variants stand for which method. Used by docs/findings.py."""

TITLES = {  # in the order of a summary's columns
    "mnist": "MNIST",
    "smallnorb": "smallNORB",
    "multimnist": "MultiMNIST",
    "affnist-generated": "generated affine MNIST",
}
SIZED = ("mnist", "smallnorb")  # experiments whose networks' parameters a summary has


def _both(variant: str, *, pairs: str = "", affine: str = "") -> dict[str, str]:
    """Return the same variant for MNIST and smallNORB, and those for MultiMNIST and affine digits where it has any."""
    found = {"mnist": variant, "multimnist": pairs, "affnist-generated": affine, "smallnorb": variant}
    return {experiment: name for experiment, name in found.items() if name}


# study -> rows of its summary: what people call the method, its variant in each experiment
SUMMARY = {
    "cpu": {
        "CapsNet, dynamic routing, 1 iteration": _both(
            "capsnet-iterations1", pairs="capsnet_uniform", affine="capsnet_uniform"
        ),
        "CapsNet, dynamic routing, 2 iterations": _both(
            "capsnet-iterations2", pairs="capsnet_bare_others-iterations2", affine="capsnet_bare_others-iterations2"
        ),
        "CapsNet, dynamic routing, 3 iterations": _both(
            "capsnet-iterations3", pairs="capsnet_bare", affine="capsnet_bare"
        ),
        "CapsNet, dynamic routing, 5 iterations": _both(
            "capsnet-iterations5", pairs="capsnet_bare_others-iterations5", affine="capsnet_bare_others-iterations5"
        ),
        "CapsNet, dynamic routing, 1 iteration, decoder": _both(
            "capsnet_decoder-iterations1", pairs="capsnet_moved-iterations1", affine="capsnet_moved-iterations1"
        ),
        "CapsNet, dynamic routing, 2 iterations, decoder": _both(
            "capsnet_decoder-iterations2", pairs="capsnet_moved-iterations2", affine="capsnet_moved-iterations2"
        ),
        "CapsNet, dynamic routing, 3 iterations, decoder": _both(
            "capsnet_decoder-iterations3", pairs="capsnet_moved-iterations3", affine="capsnet_moved-iterations3"
        ),
        "CapsNet, dynamic routing, 5 iterations, decoder": _both(
            "capsnet_decoder-iterations5", pairs="capsnet_moved-iterations5", affine="capsnet_moved-iterations5"
        ),
        "CapsNet, dynamic routing, 3 iterations, spread loss": _both("capsnet_spread", affine="capsnet_spread"),
        "CapsNet, dynamic routing, 3 iterations, cross-entropy": _both(
            "capsnet_cross_entropy", affine="capsnet_cross_entropy"
        ),
        "CapsNet, EM routing, 1 iteration": _both("capsnet_em-iterations1", affine="capsnet_em_odd-iterations1"),
        "CapsNet, EM routing, 2 iterations": _both("capsnet_em-iterations2", affine="capsnet_em_twice"),
        "the same (2), inverse temperature 0.02 in the class layer too": {
            "affnist-generated": "capsnet_em_twice_whole"
        },
        "CapsNet, EM routing, 3 iterations": _both("capsnet_em-iterations3", affine="capsnet_em_odd-iterations3"),
        **{
            f"CapsNet, EM routing, {count}, decoder": _both(
                f"capsnet_em_decoder-iterations{count[0]}", affine=f"capsnet_em_decoder-iterations{count[0]}"
            )
            for count in ("1 iteration", "2 iterations", "3 iterations")
        },
        **{
            f"CapsNet, EM routing, {count}, margin loss": {"multimnist": f"capsnet_em_bare_pairs-iterations{count[0]}"}
            for count in ("1 iteration", "2 iterations", "3 iterations")
        },
        "CapsNet, EM routing, 1 iteration, decoder, margin loss": {"multimnist": "capsnet_em_pairs_odd-iterations1"},
        "CapsNet, EM routing, 2 iterations, decoder, margin loss": {"multimnist": "capsnet_em_pairs"},
        "CapsNet, EM routing, 3 iterations, decoder, margin loss": {"multimnist": "capsnet_em_pairs_odd-iterations3"},
        "CapsNet, Heinsen routing": _both("capsnet_others-heinsen", affine="capsnet_others-heinsen"),
        "CapsNet, Heinsen routing, margin loss": {"mnist": "heinsen_margin"},
        "CapsNet, Heinsen routing, decoder, margin loss": {"multimnist": "capsnet_others_pairs-heinsen"},
        "CapsNet, Heinsen routing, 1 iteration, decoder, margin loss": {"multimnist": "heinsen_once_pairs"},
        "CapsNet, Heinsen's couplings, activations of dynamic routing": {
            "mnist": "heinsen_lengths",
            "smallnorb": "heinsen_lengths",
        },
        "CapsNet, Heinsen's couplings, activations of dynamic routing, decoder": {
            "multimnist": "heinsen_lengths_pairs"
        },
        "CapsNet, EM's couplings, 2 iterations, activations of dynamic routing": {
            "mnist": "em_lengths",
            "smallnorb": "em_lengths",
        },
        "CapsNet, EM's couplings, 2 iterations, activations of dynamic routing, decoder": {
            "multimnist": "em_lengths_pairs"
        },
        "CapsNet, variational Bayes routing": _both(
            "capsnet_others-variational_bayes", affine="capsnet_others-variational_bayes"
        ),
        "CapsNet, variational Bayes routing, inverse scale 10, decoder, margin loss": {
            "multimnist": "capsnet_bayes_pairs"
        },
        "CapsNet, inverted dot-product routing": _both(
            "capsnet_others-inverted_dot_product", affine="capsnet_others-inverted_dot_product"
        ),
        "CapsNet, inverted dot-product routing, decoder, margin loss": {
            "multimnist": "capsnet_others_pairs-inverted_dot_product"
        },
        "CapsNet, attention routing": _both("capsnet_routings-attention", affine="capsnet_routings-attention"),
        "CapsNet, attention routing, decoder": {"multimnist": "capsnet_routings_pairs-attention"},
        "CapsNet, sparse routing": _both("capsnet_routings-sparse", affine="capsnet_routings-sparse"),
        "CapsNet, sparse routing, decoder": {"multimnist": "capsnet_routings_pairs-sparse"},
        "CapsNet, sparse routing with five classes, decoder": {"multimnist": "sparse_five_pairs"},
        "CapsNet, two drawn classes per child, decoder": {"multimnist": "random_two_pairs"},
        "CapsNet, five drawn classes per child, decoder": {"multimnist": "random_five_pairs"},
        "CapsNet, five classes per child by mean agreement, decoder": {"multimnist": "common_five_pairs"},
        "CapsNet, five classes per child redrawn for each image, decoder": {"multimnist": "redrawn_five_pairs"},
        "CapsNet, self-routing": _both("capsnet_self", affine="capsnet_self"),
        "CapsNet, self-routing, decoder": {"multimnist": "capsnet_self_pairs"},
        "CapsNet, equal couplings, decoder, children and loss of self-routing": {
            "multimnist": "capsnet_uniform_as_self_pairs"
        },
        "CapsNet, equal couplings, children and loss of self-routing": {"affnist-generated": "capsnet_uniform_as_self"},
        "CapsNet, equal couplings, decoder, children of self-routing": {"multimnist": "capsnet_uniform_children_pairs"},
        "CapsNet, equal couplings, children of self-routing": {"affnist-generated": "capsnet_uniform_children"},
        "CapsNet, equal couplings, decoder, children of self-routing, transforms from 0.02": {
            "multimnist": "capsnet_uniform_children_narrow_pairs"
        },
        "CapsNet, equal couplings, children of self-routing, transforms from 0.02": {
            "affnist-generated": "capsnet_uniform_children_narrow"
        },
        "matrix capsules, EM routing, 2 iterations": _both(
            "matrix_capsnet", pairs="matrix_capsnet_pairs", affine="matrix_capsnet"
        ),
        "Efficient-CapsNet": {
            **dict.fromkeys(("mnist", "multimnist", "affnist-generated"), "efficient_capsnet"),
            "smallnorb": "efficient_capsnet_norb",
        },
        "DeepCaps": _both("deepcaps", pairs="deepcaps", affine="deepcaps"),
        "self-routing CapsNet": {"smallnorb": "self_routing_capsnet"},
        "CNN of CapsNet's size": _both("cnn_matched", pairs="cnn_matched", affine="cnn_matched"),
        "CNN of the size of CapsNet with decoder": dict.fromkeys(TITLES, "cnn_matched_decoder"),
        "CNN (S17)": {"mnist": "cnn_sabour_mnist", "multimnist": "cnn_sabour_multimnist"},
        "CNN (H18)": {"smallnorb": "cnn_hinton_norb"},
        "ResNet-20": _both("resnet20", pairs="resnet20", affine="resnet20"),
        "ViT": _both("vit_small", pairs="vit_small", affine="vit_small"),
    },
    "fair": {
        "CapsNet, dynamic routing": {"mnist": "dynamic-iterations3", "smallnorb": "dynamic-iterations3"},
        "CapsNet, EM routing": {"mnist": "em-iterations3", "smallnorb": "em-iterations3"},
        "CNN of their size": {"smallnorb": "cnn"},
    },
}


def _main(variant: str, pairs: str, affine: str | None = None) -> dict[str, str]:
    """Return a routing's variants: `variant` on MNIST, smallNORB and, unless it is another one, on affine digits."""
    return _both(variant, pairs=pairs, affine=variant if affine is None else affine)


# the same for the first page, where a routing is one row though it has a decoder and the margin loss on MultiMNIST
MAIN = {
    "cpu": {
        "CapsNet, equal couplings": _main("capsnet_uniform", "capsnet_moved-iterations1"),
        "CapsNet, dynamic routing, 3 iterations": _main(
            "capsnet-iterations3", "capsnet_moved-iterations3", "capsnet_bare"
        ),
        "CapsNet, EM routing, 2 iterations": _main("capsnet_em-iterations2", "capsnet_em_pairs", "capsnet_em_twice"),
        "CapsNet, EM routing, 3 iterations": _main(
            "capsnet_em-iterations3", "capsnet_em_pairs_odd-iterations3", "capsnet_em_odd-iterations3"
        ),
        "CapsNet, Heinsen routing": _main("capsnet_others-heinsen", "capsnet_others_pairs-heinsen"),
        "CapsNet, variational Bayes routing": _main("capsnet_others-variational_bayes", "capsnet_bayes_pairs"),
        "CapsNet, inverted dot-product routing": _main(
            "capsnet_others-inverted_dot_product", "capsnet_others_pairs-inverted_dot_product"
        ),
        "CapsNet, attention routing": _main("capsnet_routings-attention", "capsnet_routings_pairs-attention"),
        "CapsNet, sparse routing": _main("capsnet_routings-sparse", "capsnet_routings_pairs-sparse"),
        "CapsNet, self-routing": _main("capsnet_self", "capsnet_self_pairs"),
        "CNN of CapsNet's size": _main("cnn_matched", "cnn_matched_decoder"),
        **{
            name: SUMMARY["cpu"][name]
            for name in (
                "matrix capsules, EM routing, 2 iterations",
                "Efficient-CapsNet",
                "DeepCaps",
                "self-routing CapsNet",
                "CNN (S17)",
                "CNN (H18)",
                "ResNet-20",
                "ViT",
            )
        },
    },
}
LATER = {  # after 15 epochs and after 30: STUDY/EXPERIMENT/VARIANT of both
    "Heinsen's couplings, lengths": ("cpu/smallnorb/heinsen_lengths", "diagnostics/smallnorb/heinsen_lengths_long"),
    "sparse routing": ("cpu/affnist-generated/capsnet_routings-sparse", "diagnostics/affine-far/sparse_long"),
    "self-routing": ("cpu/affnist-generated/capsnet_self", "diagnostics/affine-far/self_far_long"),
    "EM routing (2 iterations), 0.02 in the class layer": (
        "cpu/affnist-generated/capsnet_em_twice_whole",
        "diagnostics/affine-far/em_whole_long",
    ),
}
BY_SEED = {  # study -> heads of the columns, and for each row the cells EXPERIMENT/VARIANT below them
    "diagnostics": (
        ("15 epochs", "30 epochs", "15 epochs, seed 4's images for all"),
        {
            "EM routing (2 iterations)": (
                "smallnorb/capsnet_em-iterations2",
                "smallnorb/capsnet_em_long",
                "smallnorb-draw/capsnet_em_twice",
            ),
            "EM routing (3 iterations)": (
                "smallnorb/capsnet_em-iterations3",
                "smallnorb/capsnet_em_thrice_long",
                "smallnorb-draw/capsnet_em_thrice",
            ),
            "dynamic routing (3 iterations)": ("smallnorb/capsnet-iterations3", "smallnorb/capsnet_long", ""),
            "dynamic routing, spread loss": (
                "smallnorb/capsnet_spread",
                "smallnorb/capsnet_spread_long",
                "smallnorb-draw/capsnet_spread",
            ),
            "dynamic routing, cross-entropy": (
                "smallnorb/capsnet_cross_entropy",
                "smallnorb/capsnet_cross_entropy_long",
                "smallnorb-draw/capsnet_cross_entropy",
            ),
            "matrix capsules": ("smallnorb/matrix_capsnet", "smallnorb/matrix_capsnet_long", ""),
            "dynamic routing, residual features": ("smallnorb/residual-dynamic", "smallnorb/residual_long-dynamic", ""),
            "uniform routing, loss and children of self-routing": (
                "smallnorb/uniform_as_self",
                "smallnorb/uniform_as_self_long",
                "",
            ),
        },
    ),
}
NOTES = {  # below the summary
    "cpu": (
        "Mean ± standard deviation over five seeds; a blank was not trained. On MultiMNIST both digits of a pair have"
        " to be right, and matrix capsules have the margin loss. Affine digits are tested by networks that were "
        "trained on translated ones; one seed of EM routing with two iterations loses three classes there, hence its "
        "spread. One seed of the ResNet-20 on MultiMNIST has 36.7 %, the others 26.3 to 29.5, because of batch norm's"
        " running statistics. Images of MultiMNIST and affine digits are larger than those of MNIST, and so are most "
        "networks for them: runs.csv has their sizes. On affine digits one iteration of dynamic routing is the run of"
        " uniform routing, the same computation. Efficient-CapsNet has on MultiMNIST and affine digits what its "
        "authors have on MNIST, batch norm and ReLU; on smallNORB, as they have it, instance norm and leaky ReLU."
    ),
    "cpu main": (
        "Mean ± standard deviation over five seeds; a blank was not trained. Each routing of CapsNet has the loss of "
        "its paper and no decoder; on MultiMNIST, where both digits of a pair have to be right, it has the margin loss "
        "(self-routing its own) and a decoder, which the CNN's size counts there, and variational Bayes has a wider "
        "prior. The networks tested on affine digits were trained on translated ones. S17's CNN has half of CapsNet's "
        "parameters on MNIST and a sixteenth on MultiMNIST; the ResNet-20 has half of the usual widths. One seed of EM "
        "routing with two iterations loses three classes of affine digits, and one of the ResNet-20 has 36.7 % on "
        "MultiMNIST because of batch norm's running statistics."
    ),
    "fair": "Mean ± standard deviation over five seeds, or n where it is given.",
}
