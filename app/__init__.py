"""Classify images with LeNet-5-family networks: networks, layers, kernels, engine, reports, lessons, measurements."""

import os

VERSION = "0.1.0"  # pyproject.toml reads the version here
# Every program, process and library use of this package passes here before it can load ONNX Runtime, which would
# otherwise report to its maker and keep files for that in the user's folders.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
