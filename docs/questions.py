"""The questions that the first page answers, and the contrasts that each answer rests on. Used by docs/answers.py."""

from question import Contrast, Question
from questions_em import EM_OR_DYNAMIC
from questions_routing import EQUAL_COUPLINGS, ITERATIONS

QUESTIONS = (
    Question(
        "Is CapsNet better than a CNN of its size? Not with one convolution as its features.",
        "CapsNet against a CNN of its size",
        "It is behind on all four data sets, and at S17's width on both that were tried, MNIST and MultiMNIST. With "
        "a small residual network in place of that convolution the comparison is undecided on MNIST and smallNORB, "
        "and CapsNet is ahead on MultiMNIST and, with one matrix per type at all positions and no routing, on affine "
        "digits.",
        "Its error is {cnn@mnist>} points higher on MNIST, {cnn@smallnorb>} on smallNORB and "
        "{cnn@multimnist>} on MultiMNIST. At S17's width, with decoder, it is {wide@mnist>} points "
        "higher after six epochs on all images of MNIST and, set up as in the code of S17's authors, "
        "{wide_pairs@multimnist>} after five on MultiMNIST. With residual features, a small residual network with "
        "batch norm in place of its first convolution, no difference was shown on MNIST {residual@mnist=} or smallNORB "
        "{residual@smallnorb=}, and on MultiMNIST, with decoder, its error is {pairs@multimnist<} points lower.",
        {
            "cnn": Contrast("cpu", "CapsNet with dynamic routing (3 iterations) against a CNN of its size"),
            "decoder": Contrast("cpu", "CapsNet with decoder against a CNN of its size"),
            "long": Contrast("diagnostics", "CapsNet against a CNN of its size, both after 30 epochs"),
            "wide": Contrast("full-width", "CapsNet with decoder against a CNN of its size"),
            "wide_pairs": Contrast("full-width", "CapsNet from the authors' start against a CNN of its size"),
            "sabour": Contrast("full-width", "CapsNet with decoder against S17's CNN of 35 million parameters"),
            "sabour_pairs": Contrast(
                "full-width", "CapsNet from the authors' start against S17's CNN of 25 million parameters"
            ),
            "residual": Contrast("diagnostics", "CapsNet with residual features against the CNN of CapsNet's size"),
            "pairs": Contrast(
                "diagnostics", "CapsNet with decoder and residual features against the CNN of CapsNet's size"
            ),
            "shared": Contrast("diagnostics", "CapsNet, residual features, one matrix per type, against the CNN"),
            "decayed": Contrast(
                "diagnostics", "CapsNet with decoder and residual features against that CNN, whose rate decays"
            ),
            "resnet": Contrast("diagnostics", "CapsNet with decoder and residual features against a ResNet-20"),
            "twice": Contrast("diagnostics", "CapsNet of twice the width, with decoder, against a CNN of its size"),
            "centred": Contrast("diagnostics", "CapsNet against a CNN of its size, central crops"),
            "centred_draw": Contrast(
                "diagnostics", "CapsNet against a CNN of its size, central crops, with validation images"
            ),
        },
        more="After 30 epochs its error is {long@mnist>} points higher on MNIST and {long@smallnorb>} on smallNORB.\n"
        "With decoder, against a CNN of that size, it is {decoder@mnist>} points higher on MNIST, "
        "{decoder@smallnorb>} on smallNORB, {decoder@multimnist>} on MultiMNIST and {decoder@affnist-generated>} on "
        "affine digits.\n"
        "With decoder and twice the channels and types of capsules its error is {twice@mnist>} points higher on MNIST "
        "than that of a CNN of its size, and {twice@smallnorb>} on smallNORB.\n"
        "On smallNORB, where training too sees the [middle of each image](surprises/features.md#random-crops), its "
        "error is {centred@smallnorb-centred>?} points higher, which does not hold after Holm's correction; with "
        "another draw of the training images {centred_draw@smallnorb-centred>}, which [depends on the "
        "family](surprises/features.md#random-crops).\n"
        "With residual features and decoder on MultiMNIST its error is the same, within a tenth, as that of a "
        "ResNet-20 of widths 16-32-64 {resnet@multimnist~}.\n"
        "Against S17's own CNNs, at S17's width: on MultiMNIST, set up as in the code of S17's authors, CapsNet has "
        "an error {sabour_pairs@multimnist<} points lower (one seed of that CNN is far worse than the others); on "
        "MNIST no difference was shown (three seeds) {sabour@mnist=}.\n"
        "Where the learning rate of the CNN on MultiMNIST decays as on other data, CapsNet with residual features and "
        "decoder is {decayed@multimnist<} points ahead of it.\n"
        "With residual features and one matrix per type at all positions, without routing, its error on affine digits "
        "is {shared@affnist-generated<} points lower.",
        also="{cnn@affnist-generated>}",
        rows={
            "dynamic routing (3 iterations)": "cnn@mnist cnn@smallnorb cnn@multimnist cnn@affnist-generated",
            "with decoder and twice the width": "twice@mnist twice@smallnorb",
            "with residual features (MultiMNIST: with decoder; affine digits: one matrix per type, no routing)": (
                "residual@mnist residual@smallnorb pairs@multimnist shared@affnist-generated"
            ),
            "with decoder, at S17's width, all images (MultiMNIST: from the authors' start)": "wide@mnist "
            "wide_pairs@multimnist",
        },
    ),
    EQUAL_COUPLINGS,
    EM_OR_DYNAMIC,
    ITERATIONS,
    Question(
        "Is CapsNet better on affine digits? Not as S17 has it: a CNN of its size and a ResNet-20 are.",
        "CapsNet and matrix capsules against a ResNet-20",
        "Trained on translated digits and tested on affine ones, it is behind both. Its error rises steeply where "
        "digits lie farther from the centre than in training; that of the ResNet-20 hardly, since it takes a mean over "
        "positions. With residual features and one matrix per type at all positions CapsNet without routing is ahead "
        "of the CNN, and the comparison with the ResNet-20 is undecided; dynamic routing raises its error.",
        "Trained on translated digits and tested on affine images generated from MNIST, CapsNet has an error "
        "{cnn@affnist-generated>} points higher than a CNN of its size and {resnet@affnist-generated>} higher than a "
        "ResNet-20. Dynamic routing has the same error there as equal couplings, within a tenth "
        "{uniform@affnist-generated~}.",
        {
            "cnn": Contrast("cpu", "CapsNet with dynamic routing (3 iterations) against a CNN of its size"),
            "resnet": Contrast("cpu", "CapsNet with dynamic routing (3 iterations) against a ResNet-20"),
            "resnet_pairs": Contrast("cpu", "CapsNet with decoder against a ResNet-20"),
            "uniform": Contrast("cpu", "dynamic (3 iterations) against uniform routing, without a decoder"),
            "matrix": Contrast("cpu", "matrix capsules against a ResNet-20"),
            "matrix_pairs": Contrast("cpu", "matrix capsules, margin loss, against a ResNet-20"),
            "matrix_em": Contrast("cpu", "matrix capsules against CapsNet with EM (2) and decoder, both margin loss"),
            "narrow": Contrast("cpu", "CapsNet with dynamic routing (3) against a ResNet-20 of half the usual widths"),
            "matrix_narrow": Contrast("cpu", "matrix capsules against a ResNet-20 of half the usual widths"),
            "em": Contrast("cpu", "EM (2 iterations) against dynamic routing (3), each under its paper's loss"),
            "whole": Contrast("cpu", "EM (2) with 0.02 in the class layer against dynamic (3), each under its loss"),
            "spread": Contrast("cpu", "EM (2) with 0.02 in the class layer against dynamic (3), both spread loss"),
            "heinsen": Contrast("cpu", "Heinsen against uniform routing, each under its own loss"),
            "self": Contrast("cpu", "self-routing against uniform routing, each under its own loss"),
            "equal": Contrast("cpu", "self-routing against uniform routing, equal children and loss"),
            "attention": Contrast("cpu", "attention against uniform routing"),
            "sparse": Contrast("cpu", "sparse against uniform routing"),
            "bayes": Contrast("cpu", "variational Bayes against uniform routing, each under its own loss"),
            "inverted": Contrast("cpu", "inverted dot-product against uniform routing, each under its own loss"),
            "decoder": Contrast("cpu", "CapsNet with decoder against a CNN of its size"),
            "shared": Contrast("diagnostics", "CapsNet, residual features, one matrix per type, against a ResNet-20"),
            "shared_cnn": Contrast("diagnostics", "CapsNet, residual features, one matrix per type, against the CNN"),
            "routed": Contrast("diagnostics", "residual features, one matrix per type: three iterations, not one"),
            "averaged": Contrast(
                "diagnostics", "ResNet-20: a weight per position, not the mean over them, digits farther out"
            ),
            "near": Contrast(
                "diagnostics", "CapsNet against a CNN of its size: digits no farther out than in training"
            ),
        },
        more="Under EM routing with two iterations one seed of five loses three classes; with three iterations none "
        "does. With an inverse temperature of 0.02 in the class layer too, EM routing loses none, and its error is "
        "{whole@affnist-generated<?} points lower than under dynamic routing, each under its paper's loss, which does "
        "not hold after Holm's correction.\n"
        "Compared with equal couplings, each under its own loss, the error of "
        "Heinsen routing is {heinsen@affnist-generated<} points lower (whether that holds after the correction "
        "[depends on the family](results/cpu.md#read-this-before-you-use-a-number)), that of inverted dot-product "
        "routing {inverted@affnist-generated>?} higher, which does not hold after it, and that of self-routing "
        "{self@affnist-generated>} higher. For attention, sparse and variational Bayes routing no difference was "
        "shown.\n"
        "The error of matrix capsules is {matrix@affnist-generated>} points higher than that of the ResNet-20, which "
        "has three times their parameters. Against the same ResNet-20, declared when the errors were known: on MNIST "
        "that of matrix capsules is {matrix_narrow@mnist>} points higher, on smallNORB {matrix_narrow@smallnorb>?}, "
        "which does not hold after Holm's correction; for CapsNet no difference was shown on MNIST {narrow@mnist=} or "
        "smallNORB {narrow@smallnorb=}. On MultiMNIST, declared before they ran, the error of matrix capsules is "
        "{matrix_pairs@multimnist>} points higher, and {matrix_em@multimnist>} higher than that of EM routing in "
        "CapsNet with decoder.\n"
        "With one iteration of routing, and no test digit farther out than in training, the difference from the CNN is "
        "{near@affnist-generated>} points ([by where digits lie](surprises/affine.md#where-the-digits-lie), for all "
        "networks).\n"
        "A ResNet-20 with a weight per position in place of its mean over positions has an error "
        "{averaged@affnist-generated>} points higher. CapsNet with residual features and one matrix per type at all "
        "positions, without routing, has one {shared_cnn@affnist-generated<} points lower than the CNN, and compared "
        "with the ResNet-20 no difference was shown {shared@affnist-generated=}; three iterations of dynamic routing "
        "raise it by {routed@affnist-generated>} ([weights per position](surprises/affine.md#weights-per-position)).",
        also="{resnet_pairs@multimnist=} {decoder@affnist-generated>} {em@affnist-generated=} "
        "{spread@affnist-generated=} {attention@affnist-generated=} {sparse@affnist-generated=} "
        "{bayes@affnist-generated=} {equal@affnist-generated>?}",
        rows={
            "CapsNet (MultiMNIST: with decoder)": "narrow@mnist narrow@smallnorb resnet_pairs@multimnist "
            "resnet@affnist-generated",
            "CapsNet, residual features, one matrix per type, no routing": "shared@affnist-generated",
            "matrix capsules (MultiMNIST: margin loss)": "matrix_narrow@mnist matrix_narrow@smallnorb "
            "matrix_pairs@multimnist matrix@affnist-generated",
        },
    ),
    Question(
        "Does the decoder help? No: at S17's weight of its loss the error is the same, within a tenth.",
        "With a decoder against without",
        "That holds on all four data sets, under dynamic routing and under EM routing with two iterations. The "
        "decoders under EM draw little but the mean of all images, and the narrow ones under dynamic routing on "
        "MNIST little but the mean of each class.",
        "Under dynamic routing the error with it differs by {dynamic@mnist~} points on MNIST, {dynamic@smallnorb~} on "
        "smallNORB, {dynamic@multimnist~} on MultiMNIST (the interval leaves out zero, which did not hold after "
        "Holm's correction) and {dynamic@affnist-generated~} on affine digits, and at S17's width, after six epochs "
        "on all images of MNIST, by {wide@mnist~}. Under dynamic routing the narrow decoders draw more than the mean "
        "image of each class on smallNORB, MultiMNIST and affine digits, but not on MNIST; those at S17's width have "
        "begun to there. Under EM they draw little but the mean of all images, so its rows say nothing about decoders "
        "that draw ([squared errors](results/cpu.md#what-decoders-draw)).",
        {
            "dynamic": Contrast("cpu", "dynamic routing: with a decoder against without"),
            "wide": Contrast("full-width", "three iterations: with a decoder against without"),
            "once": Contrast("full-width", "one iteration: with a decoder against without"),
            "em": Contrast("cpu", "EM routing: with a decoder against without"),
            "em_pairs": Contrast("cpu", "EM routing, margin loss: with a decoder against without"),
        },
        more="Under EM routing with two iterations the error differs by {em@mnist~} on MNIST, {em@smallnorb~} on "
        "smallNORB, {em_pairs@multimnist~} on MultiMNIST (margin loss) and {em@affnist-generated~} on affine digits, "
        "and at S17's width with one iteration of dynamic routing by {once@mnist~} on MNIST and {once@multimnist~} on "
        "MultiMNIST (four seeds).",
        rows={
            "dynamic routing (3 iterations)": "dynamic@mnist dynamic@smallnorb dynamic@multimnist "
            "dynamic@affnist-generated",
            "the same at S17's width, 6 epochs of all images": "wide@mnist",
            "EM routing (2 iterations; MultiMNIST: margin loss)": "em@mnist em@smallnorb em_pairs@multimnist "
            "em@affnist-generated",
        },
    ),
    Question(
        "Are newer capsule networks better than a ResNet-20? That depends on the data and on details.",
        "Newer capsule networks against a ResNet-20",
        "Efficient-CapsNet is ahead of a ResNet-20 of half the usual widths, which has less than half of its "
        "parameters, on MNIST, and behind on affine digits; on MultiMNIST the comparison is undecided. On smallNORB "
        "it is behind as its authors have it, and ahead with batch norm and ReLU, tried later. DeepCaps is behind "
        "the same ResNet-20 on MNIST, smallNORB and affine digits. The self-routing CapsNet is ahead on smallNORB of "
        "a ResNet-20 as wide as its features.",
        "Efficient-CapsNet, with four to five times the multiply-adds, has an error {efficient@mnist<} points lower on "
        "MNIST. As its authors have it, its error is {efficient@smallnorb>} points higher on smallNORB; with batch "
        "norm and ReLU, tried after that, it is {relu@smallnorb<} lower. On affine digits it is "
        "{efficient@affnist-generated>} points higher, and on MultiMNIST no difference was shown "
        "{efficient@multimnist=}. The error of the self-routing CapsNet is {self@smallnorb<} points lower on smallNORB "
        "than that of a ResNet-20 as wide as its features.",
        {
            "efficient": Contrast("cpu", "Efficient-CapsNet against a ResNet-20 of less than half its size"),
            "relu": Contrast("diagnostics", "Efficient-CapsNet with ReLU and batch norm against a ResNet-20"),
            "self": Contrast("diagnostics", "self-routing CapsNet against a ResNet-20 of its backbone's widths"),
            "deep": Contrast("cpu", "DeepCaps against a ResNet-20 of half the usual widths"),
            "wide": Contrast("diagnostics", "DeepCaps of twice the width against a ResNet-20, widths 16-32-64"),
            "wide_pairs": Contrast(
                "diagnostics", "DeepCaps of twice the width against a ResNet-20, widths 16-32-64, on pairs"
            ),
            "wide_capsnet_pairs": Contrast(
                "diagnostics", "DeepCaps of twice the width against CapsNet with decoder, on pairs"
            ),
            "wide_capsnet": Contrast("diagnostics", "DeepCaps of twice the width against CapsNet with decoder"),
            "both": Contrast("diagnostics", "DeepCaps against CapsNet with decoder, both of twice the width"),
            "both_pairs": Contrast(
                "diagnostics", "DeepCaps against CapsNet with decoder, both of twice the width, on pairs"
            ),
        },
        more="The ResNet-20 has 0.4 to 0.5 times the parameters in these.\n"
        "DeepCaps, with decoder and over three times the parameters of that ResNet-20, has an error {deep@smallnorb>} "
        "points higher on smallNORB. Declared when the errors were known: {deep@mnist>} higher on MNIST, "
        "{deep@affnist-generated>} on affine digits and {deep@multimnist>?} on MultiMNIST, which does not hold after "
        "Holm's correction.\n"
        "[With twice its channels and types](surprises/networks.md#deepcaps-and-its-width), tried when these were "
        "known, it has an error {wide_capsnet@mnist<} points lower on MNIST and {wide_capsnet@smallnorb<} on "
        "smallNORB, and {wide_capsnet_pairs@multimnist<} on MultiMNIST, than CapsNet with decoder, which has more "
        "parameters and 0.5 to 0.8 times the multiply-adds. Against a CapsNet as wide, with more parameters and "
        "multiply-adds, it is {both@smallnorb<} points ahead on smallNORB; on MNIST no difference was shown "
        "{both@mnist=}, and on "
        "MultiMNIST its error is {both_pairs@multimnist<?} lower, which does not hold after Holm's correction. "
        "From a ResNet-20 of widths 16-32-64 no difference was shown on smallNORB {wide@smallnorb=}; on MNIST it is "
        "{wide@mnist>} points behind it, on MultiMNIST "
        "{wide_pairs@multimnist>?}, which does not hold after Holm's correction.",
        rows={
            "Efficient-CapsNet, as its authors have it on smallNORB": "efficient@mnist efficient@smallnorb "
            "efficient@multimnist efficient@affnist-generated",
            "the same with batch norm and ReLU, as on the other data": "relu@smallnorb",
            "self-routing CapsNet, ResNet-20 of its widths": "self@smallnorb",
            "DeepCaps": "deep@mnist deep@smallnorb deep@multimnist deep@affnist-generated",
            "the same of twice the width, ResNet-20 of widths 16-32-64": "wide@mnist wide@smallnorb "
            "wide_pairs@multimnist",
        },
    ),
)
