"""The log of a training."""

from typing import Annotated, Literal, TypedDict

from app.records.parts import Amount, Count, Positive, WeightsFile


class Settings(TypedDict):
    """What was trained, and how."""

    epochs: Count
    batch: Count
    optimiser: str
    rate: Annotated[Amount, "peak of the one-cycle rate"]
    weight_decay: Amount
    l2: Amount
    smoothing: Amount
    dropout: Annotated[list[tuple[str, Amount]], "layer and share of its inputs that are dropped"]
    shift: Annotated[Count, "largest shift, pixels"]
    flip: bool
    biases: Annotated[list[str], "layers that have a bias"]
    storage: Annotated[str, "type of the weights in their file"]
    network: str
    definition: Annotated[str, "the network as TOML"]
    seed: Count
    images: Count
    validation: Annotated[Count, "images held out"]
    data: Annotated[str, "SHA-256 of the images and labels"]


class Epoch(TypedDict):
    loss: Annotated[Amount, "of the images as altered, while the weights changed"]
    accuracy: Amount
    validation_loss: Annotated[Amount, "of the images held out"]
    validation_accuracy: Amount
    seconds: Amount


class Train(TypedDict):
    """The log of a training (`train --json FILE`)."""

    schema: Literal["lenet5-inference/train/1"]
    settings: Settings
    workers: Positive
    epochs: list[Epoch]
    best_epoch: Annotated[Count, "counted from 1; 0 before the first"]
    weights: WeightsFile
    test_correct: Annotated[dict[str, Count], "number of first test images → correct answers"]
