"""All data sets: their facts, the functions that read them and the tasks that are made of them."""

from typing import Any

from capsbench.data.readers import affnist, cifar10, digits, fashion_mnist, mnist, smallnorb, svhn, toynorb
from capsbench.data.tasks import affine, centred, cropped, pairs, stereo
from capsbench.data.tasks.task import make_plain_task
from capsbench.study import DataSet

TEN = tuple("0123456789")
TOYS = ("animal", "human", "airplane", "truck", "car")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

_DIGITS: dict[str, Any] = {
    "read": digits.read,
    "folder": "digits",
    "classes": TEN,
    "train_items": 1258,
    "test_items": 539,
    "source": "scikit-learn, load_digits (UCI, optical recognition, test part)",
    "licence": "CC BY 4.0",
}
_MNIST: dict[str, Any] = {
    "read": mnist.read,
    "download": mnist.download,
    "folder": "mnist",
    "classes": TEN,
    "train_items": 60_000,
    "test_items": 10_000,
    "source": "yann.lecun.com/exdb/mnist",
    "licence": "CC BY-SA 3.0",
}
_NORB: dict[str, Any] = {
    "select": stereo.select_views,
    "image_shape": (2, 32, 32),
    "classes": TOYS,
    "train_items": 24_300,
    "test_items": 24_300,
    "paper": "smallnorb",
    "clusters": "object",
    "augmentation": {"brightness": 63 / 255, "contrast": 0.8},
}
_TOYNORB: dict[str, Any] = {
    "read": toynorb.read,
    "folder": "toynorb",
    "options": stereo.ToyNorbOptions,
    "source": "capsbench/data/readers/toynorb.py",
    "licence": "MIT",
    **_NORB,
}
_SMALLNORB: dict[str, Any] = {
    "read": smallnorb.read,
    "download": smallnorb.download,
    "folder": "smallnorb",
    "options": stereo.NorbOptions,
    "source": "LeCun, Huang, Bottou, CVPR 2004",
    "licence": "for research; cannot be sold",
    **_NORB,
}
_PAIRS: dict[str, Any] = {
    "task": pairs.make_task,
    "options": pairs.PairOptions,
    "objects": 2,
    "image_shape": (1, 36, 36),
    "paper": "multimnist",
    "clusters": "digit",
    "training": {"lr_decay_every": 20_000},
}
_AFFINE: dict[str, Any] = {
    "task": affine.make_affine_task,
    "options": affine.AffineOptions,
    "image_shape": (1, 40, 40),
    "paper": "affnist",
    "clusters": "digit",
}

_ALL = (
    DataSet(
        name="digits",
        title="handwritten digits of scikit-learn",
        task=make_plain_task,
        image_shape=(1, 28, 28),
        paper="mnist",
        augmentation={"shift": 2},
        **_DIGITS,
    ),
    DataSet(
        name="mnist",
        title="MNIST",
        task=make_plain_task,
        image_shape=(1, 28, 28),
        paper="mnist",
        augmentation={"shift": 2},
        **_MNIST,
    ),
    DataSet(name="multidigits", title="overlaid pairs of scikit-learn's digits", **_PAIRS, **_DIGITS),
    DataSet(name="multimnist", title="MultiMNIST", **_PAIRS, **_MNIST),
    DataSet(name="affdigits", title="affine images of scikit-learn's digits", **_AFFINE, **_DIGITS),
    DataSet(
        name="mnist-translated",
        title="MNIST placed at random in 40x40",
        task=affine.make_translated_task,
        options=affine.TranslatedOptions,
        image_shape=(1, 40, 40),
        paper="mnist-translated",
        **_MNIST,
    ),
    DataSet(name="affnist-generated", title="affine images generated from MNIST", **_AFFINE, **_MNIST),
    DataSet(
        name="affnist",
        title="affNIST",
        read=mnist.read,
        read_test=affnist.read,
        download=mnist.download,
        download_test=affnist.download,
        folder="mnist",
        test_folder="affnist",
        task=affine.make_official_task,
        options=affine.OfficialAffineOptions,
        image_shape=(1, 40, 40),
        classes=TEN,
        train_items=60_000,
        test_items=320_000,
        paper="affnist",
        clusters="digit",
        source="cs.toronto.edu/~tijmen/affNIST",
        licence="free, without restrictions or warranty (its page); digits CC BY-SA 3.0 (MNIST)",
    ),
    DataSet(name="toynorb", title="rendered solids in smallNORB's structure", task=stereo.make_task, **_TOYNORB),
    DataSet(name="toynorb-centred", title="rendered solids with central crops", task=centred.make_task, **_TOYNORB),
    DataSet(name="smallnorb", title="smallNORB", task=stereo.make_task, **_SMALLNORB),
    DataSet(name="smallnorb-centred", title="smallNORB with central crops", task=centred.make_task, **_SMALLNORB),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        read=cifar10.read,
        download=cifar10.download,
        folder="cifar10",
        task=cropped.make_task,
        options=cropped.CroppedOptions,
        image_shape=(3, 32, 32),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        train_items=50_000,
        test_items=10_000,
        paper="cifar10",
        augmentation={"shift": 4, "flip": True},
        source="Krizhevsky 2009, through torchvision",
        licence="none stated",
    ),
    DataSet(
        name="svhn",
        title="SVHN, cropped digits of house numbers",
        read=svhn.read,
        download=svhn.download,
        folder="svhn",
        task=make_plain_task,
        image_shape=(3, 32, 32),
        classes=TEN,
        train_items=73_257,
        test_items=26_032,
        paper="svhn",
        source="ufldl.stanford.edu/housenumbers, through torchvision",
        licence="non-commercial use only",
    ),
    DataSet(
        name="fashion-mnist",
        title="Fashion-MNIST",
        read=fashion_mnist.read,
        download=fashion_mnist.download,
        folder="fashion-mnist",
        task=make_plain_task,
        image_shape=(1, 28, 28),
        classes=CLOTHES,
        train_items=60_000,
        test_items=10_000,
        paper="fashion-mnist",
        augmentation={"shift": 3, "flip": True, "scale": 0.1},
        source="github.com/zalandoresearch/fashion-mnist, through torchvision",
        licence="MIT",
    ),
)

CATALOGUE = {data_set.name: data_set for data_set in _ALL}
