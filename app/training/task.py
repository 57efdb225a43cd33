"""Load the images and settings of a training, from the request and perhaps a checkpoint."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.drawing import svg
from app.layers import Linear
from app.main_job.images import shape_mismatch_error
from app.network.definitions import NETWORKS, Network
from app.network.graph import find_network
from app.network.toml import network_toml
from app.network.weights import Weights, check_shapes, load_weights
from app.training import checkpoint, loop
from app.training.checkpoint import TrainingJob
from app.training.cpu_trainer import translate_memory_errors
from app.training.gradients import Arrays
from app.training.model import Model, make_training_model
from app.training.output_files import OutputFiles, check_file_sizes, choose_output_files
from app.training.request import TrainRequest
from app.training.settings import Settings, default_recipe, format_option
from app.training.workers import check_workers
from data_tools.dataset import Dataset, load_fashion_mnist, load_files, placeholder_fashion_mnist
from data_tools.fashion_mnist import open_split

DEFAULT_SEED = 1
VALIDATION_PART = 12  # 5,000 of 60,000


class TrainTask(Frozen):
    """A training with everything loaded and checked.

    request: the user's options and those of the checkpoint. restored: options taken from the checkpoint. test:
    images (N, 28, 28) and labels (N,) of Fashion-MNIST's test split; None if the training uses other data.
    """

    request: TrainRequest
    job: TrainingJob
    restored: Mapping[str, str]
    data: Dataset
    test: tuple[np.ndarray, np.ndarray] | None
    files: OutputFiles


def load_task(request: TrainRequest, device: str) -> TrainTask:
    """Return the training that a request describes, with everything checked before any computation. Raises UserError.

    Invalid options are refused before Fashion-MNIST is downloaded.
    """
    content = None if request.resume is None else checkpoint.load_checkpoint(request.resume)
    stored = None if content is None else content.settings
    start = None if request.start is None else load_weights(request.start)
    request, restored = (request, {}) if content is None else request.fill_from_checkpoint(content.progress.options)
    teacher = None if request.teacher is None else load_weights(request.teacher)
    own = _settings_from_weights(start, teacher)
    if content is not None:
        network = content.model.network
        _check_same_settings(request, content.settings, network)
    elif request.network is None and start is not None:
        network = start.stored_network()
    elif request.network is None:
        known = f"one of {', '.join(NETWORKS)}, or a file NAME.toml"
        raise UserError(f"name the network to train with --network: {known} (or --resume FILE)")
    else:
        network = find_network(request.network)
    files = choose_output_files(request, network, content)
    if request.plot is not None:
        svg.check_chart_folder(request.plot)
    if request.data is None:
        _resolve_settings(request, device, stored, network, placeholder_fashion_mnist("train"), own)
    data = _load_dataset(request)
    settings, model = _resolve_settings(request, device, stored, network, data, own)
    images, labels = data.images[: settings.images], data.labels[: settings.images]  # type: ignore[index]
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if stored is not None and (len(images), digest) != (stored.images, stored.data):
        raise UserError(f"{data.source} does not contain the images of {request.resume}: name those with --data")
    if settings.teacher != own["teacher"]:
        raise UserError(f"{request.resume} needs the teacher that it was started with: name its file with --teacher")
    settings = replace(settings, data=digest)
    test = (
        open_split("test", request.data_dir)[:2] if data.split == "train" else None
    )  # loaded early: it may be missing
    with translate_memory_errors(settings):
        progress = loop.initial_progress(model, settings) if content is None else content.progress
    if start is not None:
        progress = replace(progress, parameters=_model_parameters(start, model))
    progress = replace(progress, options=request.checkpoint_options())
    taught_by = None if teacher is None else _model_parameters(teacher, model)
    job = TrainingJob(settings, model, images, labels, progress, device, taught_by)
    return TrainTask(request, job, restored, data, test, files)


def _settings_from_weights(start: Weights | None, teacher: Weights | None) -> dict[str, Any]:
    """Return the settings (hashes, biases) that follow from the weights files to start from and to learn from."""
    own: dict[str, Any] = {"teacher": "" if teacher is None else teacher.sha256}
    if start is not None:
        biases = tuple(name.removesuffix("_bias") for name in start.arrays if name.endswith("_bias"))
        own |= {"start": start.sha256, "biases": biases}
    return own


def _check_same_settings(request: TrainRequest, stored: Settings, network: Network) -> None:
    for name, value in request.settings.items():
        asked, before = format_option(name, value), format_option(name, getattr(stored, name))
        if find_network(value).digest != network.digest if name == "network" else asked != before:
            raise UserError(f"{asked} differs from {request.resume}, which was started with {before}: leave it out")


def _load_dataset(request: TrainRequest) -> Dataset:
    if request.data is None:
        if request.labels is not None:
            raise UserError("--labels FILE needs --data FILE; Fashion-MNIST has its own labels")
        return load_fashion_mnist("train", request.data_dir)
    if request.data_dir is not None:
        raise UserError("--data-dir is for Fashion-MNIST: leave it out with --data")
    if str(request.labels) == "none":
        raise UserError("--labels none: train learns from labels, name them with --labels FILE")
    return load_files(request.data, request.labels)


def _resolve_settings(
    request: TrainRequest, device: str, stored: Settings | None, network: Network, data: Dataset, own: Mapping[str, Any]
) -> tuple[Settings, Model]:
    """Return the settings of the requested or resumed training, without the images' hash, and its model.

    stored: settings of the checkpoint. own: settings that follow from weights files. Raises UserError.
    """
    _check_data(data, network)
    settings = stored or _build_settings(network, request, data, own)
    model = make_training_model(network, settings.biases)
    check_file_sizes(settings, model)
    _check_settings(settings, model, data)
    if request.workers is not None:
        check_workers(request.workers, settings, device)
    return settings, model


def _check_data(data: Dataset, network: Network) -> None:
    if data.labels is None:
        raise UserError(f"{data.source} has no labels to learn from: name them with --labels FILE")
    if len(data.images) < 2:
        raise UserError(f"{data.source} has {len(data.images)} image: train needs at least two, one to hold out")
    if data.images.shape[1:] != network.input_shape:
        raise shape_mismatch_error(data, network)
    if data.images.dtype != np.uint8:
        raise UserError(f"{data.source} has {data.images.dtype} images: store them as bytes, or as k/255, to train")


def _build_settings(network: Network, request: TrainRequest, data: Dataset, own: Mapping[str, Any]) -> Settings:
    """Return the network's recipe, with values replaced by the request's, then by ``own``, those of weights files."""
    images = request.settings.get("images", len(data.images))
    if images > len(data.images):
        raise UserError(f"--images {images} is more than the {len(data.images)} of {data.source}: use fewer")
    values = {
        **vars(default_recipe(network)),
        "seed": DEFAULT_SEED,
        "validation": max(images // VALIDATION_PART, 1),
    } | dict(request.settings)
    named = {"network": network.name, "definition": network_toml(network), "images": images, "data": ""}
    return Settings(**{**values, **own, **named})


def _model_parameters(weights: Weights, model: Model) -> Arrays:
    """Return copies of the arrays of ``weights``. Raises UserError if they are another network's."""
    network = model.network
    check_shapes(replace(weights, network=network.name), model.shapes)
    if weights.input_scale not in (None, network.pixel_scale):
        raise UserError(
            f"{weights.path} multiplies pixels by {weights.input_scale:g}, network {network.name} by "
            f"{network.pixel_scale:g}: name other weights"
        )
    return {name: weights.arrays[name].copy() for name in model.shapes}


def _check_settings(settings: Settings, model: Model, data: Dataset) -> None:
    labels = data.labels[: settings.images]  # type: ignore[index]
    if settings.validation >= settings.images:
        raise UserError(f"--validation {settings.validation} leaves none of the {settings.images} images to train on")
    if labels.max() >= model.classes:
        raise UserError(
            f"{data.source} has label {labels.max()}, network {settings.network} has classes 0 to {model.classes - 1}: "
            "use labels of the same classes"
        )
    linear = [layer.name for layer in model.layers if isinstance(layer, Linear)]
    for name, _ in settings.dropout:
        if name not in linear:
            raise UserError(
                f"network {settings.network} has no layer '{name}' for --dropout: {choices_hint(name, linear)}"
            )
