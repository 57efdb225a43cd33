"""Define the JSON documents of ``networks``, ``graph``, ``accuracy``, ``import``, ``export`` and ``train``."""

from typing import Annotated, Any, Literal, TypedDict

from app.records.derive import Length, OneOf
from app.records.parts import Amount, Count, InputShape, Positive, Precision, WeightsFile


class Layer(TypedDict):
    """One layer of a network definition."""

    name: str
    kind: str
    settings: Annotated[dict[str, Any], "settings of this kind of layer that differ from the default"]
    output: Annotated[list[Positive], "shape without the batch"]


class PromisedAccuracy(TypedDict):
    """Number of correct answers that a shipped weights file promises."""

    weights: Annotated[str, "name of the file"]
    images: Positive
    correct: Count


class ListedNetwork(TypedDict):
    """One network that the program knows: its layers, sizes and accuracy."""

    name: str
    summary: str
    input: InputShape
    layers: Annotated[list[Layer], Length(1)]
    parameters: Count
    flops: Annotated[Count, "FLOPs per image"]
    accuracy: Annotated[PromisedAccuracy | None, "what the shipped weights promise"]


class Networks(TypedDict):
    """Every network with its layers, number of parameters, FLOPs and accuracy (`networks --json FILE`)."""

    schema: Literal["lenet5-inference/networks/1"]
    networks: list[ListedNetwork]


class GraphLayer(TypedDict):
    """Output shape, parameters and FLOPs of one layer."""

    name: str
    kind: str
    output: Annotated[list[Positive], "shape without the batch; empty: a label"]
    parameters: Count
    flops: Annotated[Count, "FLOPs per image"]
    activation_bytes: Annotated[Count, "bytes per image"]


class Launch(TypedDict):
    """One kernel launch, and the layers that it computes."""

    layers: list[str]
    kernel: str
    reads: Annotated[str, "name of the buffer that it reads"]
    writes: Annotated[list[str], "names of the buffers that it writes"]
    flops: Annotated[Count, "FLOPs per image"]
    bytes: Annotated[Count, "bytes read and written for each further image, without weights"]


class Graph(TypedDict):
    """A network's layers, and the launches that compute them (`graph --json FILE`)."""

    schema: Literal["lenet5-inference/graph/1"]
    network: str
    input: InputShape
    layers: list[GraphLayer]
    architecture: Annotated[str, "architecture of the GPU for which the launches are planned"]
    fused: Annotated[bool, "whether one kernel may compute several layers"]
    launches: list[Launch]


class NetworkAccuracy(TypedDict):
    """Number of correct answers of one network in one precision, beside the figures of its original report."""

    network: str
    precision: Precision | None
    correct: Annotated[dict[str, Count], "number of first images → correct answers"]
    passed: Annotated[bool | None, "null if the network has no shipped weights"]
    verdict: Annotated[str, "on the labels' agreement with the reference and on the number of correct answers"]
    reported: Annotated[dict[str, Amount], "number of first images → share of correct answers in the original report"]


class Accuracy(TypedDict):
    """Number of correct answers of every shipped network, and whether it is as expected (`accuracy --json FILE`)."""

    schema: Literal["lenet5-inference/accuracy/1"]
    device: Annotated[str, "`NumPy on the CPU`, `ONNX Runtime on the CPU`, or the card: its name, number, PCI address"]
    networks: list[NetworkAccuracy]


class ImportedArray(TypedDict):
    """One array that `import` read, and where it is stored in the weights file."""

    name: str
    name_there: Annotated[str, "name in the file; empty if the file has no names"]
    before: Annotated[str, "shape and layout in the file"]
    after: Annotated[str, "shape and layout in the weights file"]


class Enlargement(TypedDict):
    """The size to which images are enlarged before the network, and the rule for the added pixels."""

    size: Positive
    rule: Annotated[str, OneOf(("edge", "course"))]


class Import(TypedDict):
    """The arrays and network that an import found in a file, and the weights file it wrote (`import --json FILE`)."""

    schema: Literal["lenet5-inference/import/1"]
    file: Annotated[str, "file that was read"]
    format: str
    arrays: list[ImportedArray]
    network: str
    notes: list[str]
    enlarged: Annotated[Enlargement | None, "null if images are not enlarged"]
    pixel_scale: Annotated[Amount, "factor for bytes from 0 to 255"]
    difference: Annotated[Amount, "largest difference of the logits of up to 64 random images"]
    engine: Annotated[str | None, "engine that computed the file's own logits; null: NumPy"]
    written: Annotated[str, "weights file"]


class ExportedArray(TypedDict):
    """One array that `export` wrote."""

    name: str
    written_as: Annotated[str, "name in the file"]
    shape: Annotated[list[Positive], "shape in the weights file"]


class Export(TypedDict):
    """The file that an export wrote, and the arrays in it (`export --json FILE`)."""

    schema: Literal["lenet5-inference/export/1"]
    weights: Annotated[str, "weights file that was read"]
    network: str
    format: Annotated[str, OneOf(("onnx", "safetensors", "npz"))]
    arrays: list[ExportedArray]
    input: InputShape
    classes: Positive
    pixel_scale: Annotated[Amount, "factor for bytes from 0 to 255"]
    written: Annotated[str, "file that was written"]
    bytes: Positive


class Settings(TypedDict):
    """The settings of a training: optimiser, rate, augmentation, seed, network and images."""

    epochs: Count
    batch: Count
    optimiser: str
    rate: Annotated[Amount, "peak of the one-cycle rate"]
    weight_decay: Amount
    l2: Amount
    smoothing: Amount
    dropout: Annotated[list[tuple[str, Amount]], "layer and share of its inputs that are dropped"]
    shift: Annotated[Count, "largest random shift in pixels"]
    flip: bool
    biases: Annotated[list[str], "layers that have a bias"]
    storage: Annotated[str, "number type of the weights in their file"]
    network: str
    definition: Annotated[str, "the network as TOML"]
    seed: Count
    images: Count
    validation: Annotated[Count, "images held out for validation"]
    data: Annotated[str, "SHA-256 of the images and labels"]
    start: Annotated[str, "SHA-256 of the weights file that it starts from; empty for random weights"]
    teacher: Annotated[str, "SHA-256 of the teacher's weights file; empty without one"]


class Epoch(TypedDict):
    """Loss and accuracy after one epoch of training."""

    loss: Annotated[Amount, "mean over the augmented images of the epoch, each before its update"]
    accuracy: Amount
    validation_loss: Annotated[Amount, "loss of the images held out"]
    validation_accuracy: Amount
    seconds: Amount


class Train(TypedDict):
    """The settings of a training, loss and accuracy after each epoch, and the weights file (`train --json FILE`)."""

    schema: Literal["lenet5-inference/train/1"]
    settings: Settings
    workers: Positive
    epochs: list[Epoch]
    best_epoch: Annotated[Count, "epoch of the stored weights, from 1; 0: the weights before the first epoch"]
    weights: WeightsFile
    test_correct: Annotated[dict[str, Count], "number of first test images → correct answers"]
