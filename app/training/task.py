"""From the options of ``train``, and a checkpoint if there is one, to the images and the settings."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from app import figures
from app.errors import UserError
from app.layers import Linear
from app.network.definitions import Network
from app.network.graph import find_network
from app.training import checkpoint, kept_options, loop, typed
from app.training.job import memory_errors
from app.training.model import Model, training_model
from app.training.output_files import Places, check_sizes, find_places
from app.training.progress import Progress
from app.training.recipes import RECIPES, Recipe, Settings, recipe_of
from app.training.workers import check_workers
from data_tools.dataset import Dataset, announce_fashion_mnist, load_fashion_mnist, load_files
from data_tools.fashion_mnist import load_split

DEFAULT_SEED = 1
VALIDATION_PART = 12  # 5,000 of 60,000


@dataclass(frozen=True)
class Task:
    """What is to be trained, from where on, on what, and where things go."""

    settings: Settings
    model: Model
    progress: Progress  # that of the checkpoint, if one is gone on with
    again: Mapping[str, str]  # options that were not given, but are those of the checkpoint
    data: Dataset
    images: np.ndarray  # (N, C, H, W) uint8
    labels: np.ndarray  # (N,) uint8
    test: tuple[np.ndarray, np.ndarray] | None  # Fashion-MNIST's test split, (N, 28, 28) and (N,), if it is its own
    places: Places


def choose(options: argparse.Namespace, device: str) -> Task:
    """Raises UserError for whatever does not go together, before anything is computed.

    Options that cannot be met are refused before Fashion-MNIST is fetched.
    """
    content = None if options.resume is None else checkpoint.load_checkpoint(options.resume)
    stored = None if content is None else content.settings
    again = {} if content is None else kept_options.fill_in(options, content.progress.options)
    given = {f.name: value for f in fields(Settings) if (value := getattr(options, f.name, None)) is not None}
    if options.dropout is not None:
        given["dropout"] = typed.dropout(options.dropout)
    if stored is not None:
        _check_same(options.resume, stored, {name: value for name, value in given.items() if name != "data"})
    elif options.network is None:
        raise UserError(f"say which network to train: --network, one of {', '.join(RECIPES)} (or --resume FILE)")
    network = find_network(options.network if stored is None else stored.network)
    places = find_places(options, network, content)
    if options.plot is not None:
        figures.check(options.plot)
    if options.data is None:
        _settle(options, device, stored, given, network, announce_fashion_mnist("train"))
    data = _load(options)
    settings, model, count = _settle(options, device, stored, given, network, data)
    images, labels = data.images[:count], data.labels[:count]  # type: ignore[index]
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if stored is not None and (len(images), digest) != (stored.images, stored.data):
        raise UserError(f"{data.source} is not what {options.resume} was trained on: name those images with --data")
    settings = replace(settings, data=digest)
    test = load_split("test", options.data_dir) if data.split == "train" else None  # now: it may be missing
    with memory_errors(settings):
        progress = loop.start(model, settings) if content is None else content.progress
    progress = replace(progress, options=kept_options.of(options))
    return Task(settings, model, progress, again, data, images, labels, test, places)


def _check_same(path: Path, stored: Settings, given: dict[str, Any]) -> None:
    for name, value in given.items():
        asked, before = typed.typed(name, value), typed.typed(name, getattr(stored, name))
        if asked != before:
            raise UserError(f"{asked} differs from {path}, which was begun with {before}: leave it out")


def _load(options: argparse.Namespace) -> Dataset:
    if options.data is None:
        if options.labels is not None:
            raise UserError("--labels FILE goes with --data FILE; Fashion-MNIST has its own labels")
        return load_fashion_mnist("train", options.data_dir)
    if options.data_dir is not None:
        raise UserError("--data-dir is for Fashion-MNIST: leave it out with --data")
    if str(options.labels) == "none":
        raise UserError("--labels none: train learns from labels, name them with --labels FILE")
    return load_files(options.data, options.labels)


def _settle(
    options: argparse.Namespace,
    device: str,
    stored: Settings | None,
    given: dict[str, Any],
    network: Network,
    data: Dataset,
) -> tuple[Settings, Model, int]:
    """The settings but for the images' hash, the model, and how many of the images are used. Raises UserError."""
    _check_data(data, network)
    count = (options.images or len(data.images)) if stored is None else stored.images
    if stored is None and count > len(data.images):
        raise UserError(f"--images {count} is more than the {len(data.images)} of {data.source}: ask for fewer")
    settings = stored or _settings(network, given, count, "")
    model = training_model(network, settings.biases)
    check_sizes(settings, model)
    _check(settings, model, data, data.labels[:count])  # type: ignore[index]
    if options.workers is not None:
        check_workers(options.workers, settings, device)
    return settings, model, count


def _check_data(data: Dataset, network: Network) -> None:
    if data.labels is None:
        raise UserError(f"{data.source} has no labels to learn from: name them with --labels FILE")
    if len(data.images) < 2:
        raise UserError(f"{data.source} has {len(data.images)} image: train needs two or more, some of them held out")
    if data.images.shape[1:] != network.input_shape:
        raise UserError(
            f"{data.source} has images of shape {data.images.shape[1:]} (channels, height, width), "
            f"network {network.name} reads {network.input_shape}: resize them, or name another network"
        )
    if data.images.dtype != np.uint8:
        raise UserError(f"{data.source} has {data.images.dtype} images: store them as bytes, or as k/255, to train")


def _settings(network: Network, given: dict[str, Any], images: int, digest: str) -> Settings:
    recipe = recipe_of(network.name)
    if recipe is None:
        raise UserError(f"there is no recipe for network {network.name}: choose one of {', '.join(RECIPES)}")
    values = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    values |= {"seed": DEFAULT_SEED, "validation": max(images // VALIDATION_PART, 1)} | given
    return Settings(**(values | {"network": network.name, "images": images, "data": digest}))


def _check(settings: Settings, model: Model, data: Dataset, labels: np.ndarray) -> None:
    if settings.validation >= settings.images:
        raise UserError(f"--validation {settings.validation} leaves none of the {settings.images} images to train on")
    if labels.max() >= model.classes:
        raise UserError(
            f"{data.source} has label {labels.max()}, network {settings.network} knows 0 to {model.classes - 1}: "
            "use labels of the same classes"
        )
    linear = [layer.name for layer in model.layers if isinstance(layer, Linear)]
    for name, _ in settings.dropout:
        if name not in linear:
            raise UserError(f"network {settings.network} has no layer '{name}' for --dropout: use {', '.join(linear)}")
