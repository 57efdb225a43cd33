"""Recognise files of the wrong kind by their first bytes, never by their names, so that errors can name the kind."""

import re

HDF5 = b"\x89HDF\r\n\x1a\n"
START_BYTES = 512  # ``recognise`` looks at no more

_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}
_OTHERS = {
    HDF5: "an HDF5 file",
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"%PDF-": "a PDF document",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\0": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"PAR1": "a Parquet table",
    b"MATLAB 5.0": "a MATLAB file",
}
_ONNX = re.compile(rb"\x08[\x01-\x1f](\x12[\x00-\x7f][\x20-\x7e]|\x1a|\x22|\x3a|\x42)")  # ir_version, then its producer
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x20-\x7e\x80-\x9f]")
_IDX = re.compile(rb"\0\0[\x08-\x0e][\x01-\x08]")


def recognise(start: bytes) -> str | None:
    """Name the kind of content, with its article, e.g. "a PNG picture"; None if it is unknown.

    start: the first ``START_BYTES`` of the content, or all of it if it is shorter.
    """
    for magic, name in _PICTURES.items():
        if start.startswith(magic):
            return f"a {name} picture"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "a WebP picture"
    if start[:2] == b"BM" and start[6:10] == bytes(4):
        return "a BMP picture"
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            return name
    if start.startswith(b"PK\3\4"):
        return _zip(start)
    if _IDX.match(start):
        return "an IDX file"
    if start[8:10] == b'{"' and int.from_bytes(start[:8], "little") < 1 << 32:
        return "a safetensors file"
    if _PICKLE.match(start):
        return "a Python pickle, as PyTorch's old .pt and .pth files are"
    if _ONNX.match(start):
        return "an ONNX model"
    return _text(start)


def _zip(start: bytes) -> str:
    """Name the kind of a zip archive by its first member."""
    member = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if member.endswith(b".npy"):
        return "a NumPy archive (.npz)"
    if b"/" in member and member.endswith((b"data.pkl", b"version", b"byteorder", b".format_version")):
        return "a PyTorch file (.pt, .pth)"
    if member in (b"metadata.json", b"config.json"):
        return "a Keras model"
    return "a zip archive"


def _text(start: bytes) -> str | None:
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not start or error.end < len(start) - 3:  # a character may be cut at the end
            return None
        text = start[: error.start].decode("utf-8-sig")
    if not text.strip() or not all(character.isprintable() or character in "\t\r\n\f" for character in text):
        return None
    if text.lstrip().startswith("<"):
        return "a web page"
    if text.lstrip().startswith(("{", "[")):
        return "a JSON file"
    first = text.lstrip().splitlines()[0]
    if any(first.count(mark) >= 2 for mark in ",;\t"):
        return "a table in text (CSV)"
    return "a text file"
