"""Run ``main.py predict``: classify pictures and arrays, and write the answers."""

import json
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from app.base.clock import Timer
from app.base.errors import UserError, print_to_stderr
from app.base.interrupts import exit_on_interrupt, progress_bar
from app.base.processor import core_count
from app.commands.predict import CSV, JSONL, PredictRequest
from app.cuda import device
from app.engine.classifier import Classifier
from app.files.hdf5 import printable_line
from app.files.reading import may_exist
from app.images.pictures.finding import stream_stdin_names
from app.images.pictures.looks import brightness_note, save_montage
from app.images.pictures.reading import require_pillow
from app.images.predict.inputs import Input, Part, Tally, gather_inputs, image_count, split_inputs, try_prepare_picture
from app.images.predict.writers import STDOUT, WRITERS, AnswerLayout, Write, check_output_suffix, open_writer
from app.main_job.images import graph_for_images
from app.network.graph import REFERENCE_CHUNK
from app.planning.request import NetworkRequest
from app.records.classify import Predict, Unreadable
from app.terminal.output import is_same_file, write_json
from app.terminal.text import fields, terminal_width
from data_tools.dataset import Dataset
from data_tools.fashion_mnist import CLASSES

TABLE = 40  # the most images that standard output shows as a table
GPU_BATCH = 4096
BATCH_BYTES = 256 << 20  # the default batch has at most so many bytes of images


def predict(request: PredictRequest) -> int:
    """Classify the inputs, write the answers and report. Return 0.

    Raises UserError for wrong options or inputs before it writes anything, and at the end for unreadable pictures.
    """
    if request.answers_each_line:
        require_pillow()
        with _open_classifier(request) as classifier:
            return _classify_stdin_names(request, classifier)
    check_output_suffix(request.out)
    if request.show is not None and request.show.suffix.lower() != ".png":
        raise UserError(f"--show {request.show} is written as PNG: end its name in .png")
    inputs = gather_inputs(request.paths)
    if request.show is not None:
        require_pillow()
    if request.show is not None and may_exist(request.show):
        _check_pictures_not_overwritten(request.show, inputs)
    total = sum(map(image_count, inputs))
    if not total:
        raise UserError("there is nothing to classify: the list names no pictures")
    if request.invert is not None and not any(isinstance(one, list) for one in inputs):
        raise UserError("--invert is for pictures: leave it out for arrays, which are classified as they are")
    with _open_classifier(request) as classifier:
        return _classify_inputs(request, inputs, total, classifier)


def _open_classifier(request: PredictRequest) -> Classifier:
    network = NetworkRequest(
        network=request.network, weights=request.weights, precision=request.precision, sparse=request.sparse
    )
    with exit_on_interrupt():
        return Classifier.from_request(network, request.device)


def _answer_layout(
    request: PredictRequest, classifier: Classifier, *, paths: bool, numbers: bool, notes: bool
) -> AnswerLayout:
    """Return the answers' columns; paths, numbers, notes: whether to have these. Raises UserError for wrong options."""
    graph = classifier.graph
    if request.top > graph.class_count:
        raise UserError(f"--top {request.top}: network {graph.network.name} has {graph.class_count} classes")
    least = request.min_confidence
    if least and classifier.classes is None:
        raise UserError(f"--min-confidence {least:g} replaces names of classes, and these weights have none")
    return AnswerLayout(classifier.classes, request.top, request.logits, paths, numbers, notes, least)


def _classify_stdin_names(request: PredictRequest, classifier: Classifier) -> int:
    """Write a line of JSON for each picture that standard input names, before it reads the next name; then report.

    Raises UserError at the end if pictures were unreadable, and BrokenPipeError if nobody reads the lines.
    """
    seen, layout, seconds = Tally(), _answer_layout(request, classifier, paths=True, numbers=False, notes=True), 0.0
    channels, height, width = shape = classifier.graph.network.input_shape
    classifier(np.zeros((1, *shape), np.uint8))  # opens the engine before the first name arrives
    out = sys.stdout.buffer
    with WRITERS[f".{JSONL}"](out) as write:
        for name in stream_stdin_names():
            timer = Timer()
            found = try_prepare_picture(Path(name), (channels, height, width), request.invert or "auto")
            if (prepared := seen.count_picture(found)) is None:
                fault: Unreadable = {"path": name, "error": str(found)}
                out.write(json.dumps(fault).encode() + b"\n")
            else:
                part = Part([name], [0], prepared.pixels[None], True, [prepared.doubts])
                _classify_part(part, classifier, layout, write, seen)
            out.flush()
            seconds += timer.seconds  # the wait for names does not count
    if seen.images:
        _print_report(request, classifier, seen, _build_document(request, classifier, seen, seconds))
    if seen.unreadable:
        raise UserError(f"{seen.unreadable:,} of {seen.pictures:,} pictures cannot be read: their lines say why")
    return 0


def _classify_part(
    part: Part, classifier: Classifier, layout: AnswerLayout, write: Write, seen: Tally, show: bool = False
) -> None:
    labels = classifier(part.images)
    columns = layout.make_columns(part, labels, classifier.logits, classifier.probabilities)
    write(columns)
    seen.add_answers(part, columns, show)


def _classify_inputs(request: PredictRequest, inputs: Sequence[Input], total: int, classifier: Classifier) -> int:
    graph = classifier.graph
    for one in inputs:
        if isinstance(one, Dataset):
            graph_for_images(graph, one)
    channels, height, width = graph.network.input_shape
    shape = (channels, height, width)
    alone = len(inputs) == 1 and isinstance(inputs[0], Dataset)
    numbers = any(isinstance(one, Dataset) for one in inputs)
    notes = any(isinstance(one, list) for one in inputs)
    layout = _answer_layout(request, classifier, paths=not alone, numbers=numbers, notes=notes)
    batch = request.chunk or min(_default_batch_size(classifier), max(1, BATCH_BYTES // prod(shape)))
    seen = Tally()
    timer = Timer()
    readable = total <= TABLE and not request.logits and request.format is None
    columns = terminal_width(request.output.wide) if readable else None
    overwrite = request.output.overwrite
    with (
        open_writer(request.out, overwrite=overwrite, form=request.format or CSV, width=columns) as write,
        progress_bar(total, unit=" images", unit_scale=True) as progress,
    ):
        for part in split_inputs(inputs, shape, request.invert or "auto", batch, seen, progress):
            if len(part.images):
                _classify_part(part, classifier, layout, write, seen, show=request.show is not None)
        if not seen.images:
            raise _no_readable_image_error(seen)
        if request.show is not None:
            save_montage(request.show, seen.shown, seen.names, seen.answers, overwrite)
    seconds = timer.seconds
    document = _build_document(request, classifier, seen, seconds)
    if request.output.json != STDOUT:
        _print_report(request, classifier, seen, document)
    if request.output.json is not None:
        path = None if request.output.json == STDOUT else Path(request.output.json)
        write_json(document, path, overwrite=overwrite)
    if seen.unreadable:
        _print_faults(seen)
        raise UserError(f"{seen.unreadable:,} of {seen.pictures:,} pictures cannot be read; the others are classified")
    return 0


def _check_pictures_not_overwritten(show: Path, inputs: Sequence[Input]) -> None:
    """Raise UserError if ``--show`` would replace a picture that is to be classified."""
    for path in (path for one in inputs if isinstance(one, list) for path in one):
        if is_same_file(show, path):
            raise UserError(f"--show {show} is one of the pictures ({printable_line(str(path))}): name another file")


def _default_batch_size(classifier: Classifier) -> int:
    # On the CPU a full chunk for every core: results then equal those of one call with all images, to the bit.
    return GPU_BATCH if classifier.device == "cuda" else REFERENCE_CHUNK * core_count()


def _no_readable_image_error(seen: Tally) -> UserError:
    """Return the error of a run without a readable image. If there are several pictures, print the reasons."""
    if seen.unreadable == 1:
        return UserError(seen.faults[0])
    _print_faults(seen)
    return UserError(f"none of the {seen.unreadable:,} pictures can be read; nothing is written")


def _print_faults(seen: Tally) -> None:
    for fault in seen.faults:
        print_to_stderr(f"unreadable: {fault}")
    if seen.unreadable > len(seen.faults):
        print_to_stderr(f"unreadable: {seen.unreadable - len(seen.faults):,} more")


def _build_document(request: PredictRequest, classifier: Classifier, seen: Tally, seconds: float) -> Predict:
    """Return the JSON document of the run."""
    brightness = seen.brightness / seen.images
    return {
        "schema": "lenet5-inference/predict/1",
        "network": classifier.graph.network.name,
        "precision": classifier.precision,
        "device": device.format_device(classifier.describe()),
        "why_cpu": classifier.why_cpu,
        "images": seen.images,
        "seconds": seconds,
        "pictures": seen.pictures,
        "unreadable": seen.unreadable,
        "negated": seen.inverted,
        "animated": seen.animated,
        "blank": seen.blank,
        "doubtful": seen.doubtful,
        "brightness": brightness,
        "note": brightness_note(brightness, seen.images) if classifier.classes == CLASSES else None,
        "written": [str(path) for path in (request.out, request.show) if path not in (None, STDOUT)],
    }


def _print_report(request: PredictRequest, classifier: Classifier, seen: Tally, document: Predict) -> None:
    images, seconds = document["images"], document["seconds"]
    count = f"{images:,} image{'s' * (images != 1)}"
    network = f"{document['network']} in {document['precision']}"
    head = f"{network}: {count} in {seconds:.2f} s ({images / seconds:,.0f} images/s)"
    about = {
        "device": document["device"] + (f" ({document['why_cpu']})" if document["why_cpu"] else ""),
        **_picture_notes(request, seen, classifier.graph.network.input_shape[0]),
        "note": document["note"],
        "written": ", ".join(document["written"]),
    }
    print_to_stderr(head)
    for line in fields([(name, text) for name, text in about.items() if text], terminal_width(request.output.wide)):
        print_to_stderr(line)


def _picture_notes(request: PredictRequest, seen: Tally, channels: int) -> dict[str, str]:
    """Return a note on the pictures for each name, such as ``negated``; "" if the note concerns no picture.

    channels: of the network's input; only grey pictures are negated automatically.
    """
    readable = seen.pictures - seen.unreadable
    automatic = "those darker than their ground" if channels == 1 else "never for a network with colours"
    rule = {"yes": "all", "no": "none"}.get(request.invert or "", automatic)
    files = "1 file has" if seen.animated == 1 else f"{seen.animated:,} files have"
    of = f"of {readable:,} pictures"
    notes = {
        "negated": (readable, f"{seen.inverted:,} {of} ({rule}; --invert)"),
        "animated": (seen.animated, f"{files} several frames or pages: the first is classified"),
        "blank": (seen.blank, f"{seen.blank:,} {of} (one colour only: their classes mean nothing)"),
        "doubtful": (seen.doubtful, f"{seen.doubtful:,} {of} (the column note says why)"),
    }
    return {name: text if concerned else "" for name, (concerned, text) in notes.items()}
