"""Define the JSON document of ``evaluate``: a network's accuracy, calibration, and comparison with another network."""

from typing import Annotated, Literal, TypedDict

from app.records.parts import Card, Count, Label, Network, Positive, Precision, Processor, Share, Split, Weights

Test = Literal["exact binomial", "chi-square with continuity correction"]


class Data(TypedDict):
    """The images that `evaluate` classified."""

    source: str
    split: Annotated[Split | None, "`test` or `train` of Fashion-MNIST; null for other images"]
    images: Positive


class Macro(TypedDict):
    """Mean precision, recall and F1 over the classes that occur in labels or answers; undefined values count as 0."""

    precision: Share
    recall: Share
    f1: Share


class Calibration(TypedDict):
    """Difference between mean probability and share of right answers, in 15 equally wide bins of probability."""

    expected_error: Annotated[Share, "mean difference, weighted by the answers in the bin"]
    greatest_error: Annotated[Share, "difference in the worst bin"]


class ClassAnswers(TypedDict):
    """Counts, precision, recall and F1 of one class."""

    support: Annotated[Count, "images of the class"]
    predicted: Annotated[Count, "answers that name the class"]
    correct: Count
    precision: Annotated[Share | None, "correct ÷ predicted; null if nothing was predicted"]
    recall: Annotated[Share | None, "correct ÷ support; null without images"]
    f1: Annotated[Share | None, "2 · correct ÷ (support + predicted); null if both are 0"]


class Bin(TypedDict):
    """Number of answers, mean probability and accuracy in one range of probabilities."""

    low: Annotated[Share, "answers with a probability above this"]
    high: Annotated[Share, "and up to this"]
    images: Count
    confidence: Annotated[Share | None, "mean probability; null without images"]
    accuracy: Annotated[Share | None, "share of right answers; null without images"]


class Mistake(TypedDict):
    """One image with a wrong answer."""

    image: Annotated[Count, "index, from 0"]
    label: Label
    answer: Label
    probability: Annotated[Share, "of the answer"]
    label_probability: Annotated[Share, "of the label"]


class Summary(TypedDict):
    """Accuracy, averages over the classes, and calibration."""

    correct: Annotated[Count, "right answers"]
    accuracy: Annotated[Share, "share of right answers"]
    top2_correct: Annotated[Count, "images whose label is among the two most probable"]
    top2_accuracy: Share
    macro: Macro
    calibration: Calibration


class Details(TypedDict):
    """Figures of each class, the confusion matrix, the bins of calibration, and the worst mistakes."""

    classes: Annotated[list[ClassAnswers], "by label"]
    confusion: Annotated[list[list[Count]], "images by label (rows) and answer (columns)"]
    bins: list[Bin]
    mistakes: Annotated[list[Mistake], "the 25 most confident wrong answers, the worst first"]


class Answers(Summary, Details):
    """All figures computed from the answers: accuracy and averages, figures of each class, and the worst mistakes."""


class EvaluatedNetwork(TypedDict):
    """The network, weights and precision that were evaluated."""

    network: Network
    weights: Weights
    precision: Precision


class McNemar(TypedDict):
    """McNemar's test of two networks on the same images."""

    both_right: Count
    only_first: Annotated[Count, "images on which only the first network is right"]
    only_second: Annotated[Count, "images on which only the other network is right"]
    both_wrong: Count
    p_value: Annotated[Share, "two-sided: probability of counts at least as uneven if both networks are equally good"]
    test: Test


class Change(TypedDict):
    """One image that the two networks answer differently."""

    image: Annotated[Count, "index, from 0"]
    label: Annotated[Label | None, "null without labels"]
    answer: Annotated[Label, "answer of the first network"]
    other: Annotated[Label, "answer of the other network"]


class ClassChanges(TypedDict):
    """Numbers of answers that name one class, for both networks."""

    answers: Annotated[Count, "answers of the first network"]
    other_answers: Count
    left: Annotated[Count, "images that only the first network assigns to the class"]
    came: Annotated[Count, "images that only the other network assigns to the class"]


class OtherNetwork(EvaluatedNetwork):
    """Comparison of the first network with the network of `--against`."""

    answers: Annotated[Summary | None, "null without labels"]
    mcnemar: Annotated[McNemar | None, "null without labels"]
    changed: Annotated[Count, "images with another answer"]
    changes: Annotated[list[Change], "the first 1,000 of them"]
    moves: Annotated[list[list[Count]], "images by the first network's answer (rows) and the other's (columns)"]
    classes: Annotated[list[ClassChanges], "by label"]


class Evaluate(EvaluatedNetwork):
    """Accuracy, confusions, calibration and mistakes of a network (`evaluate --json FILE`)."""

    schema: Literal["lenet5-inference/evaluate/1"]
    device: Card | Processor
    data: Data
    classes: Annotated[list[str] | None, "names by label; null if there are none"]
    answers: Annotated[Answers | None, "null without labels"]
    against: Annotated[OtherNetwork | None, "the comparison with --against OTHER; null without that option"]
