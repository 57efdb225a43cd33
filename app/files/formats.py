"""Recognise the kind of a file by its first bytes, never by its name, so that errors can name a wrong kind."""

import re

from app.files.reading import HDF5

START_BYTES = 512  # as many as ``recognise_file_kind`` reads

# The first bytes of each kind of content.
_BEGINNINGS = {
    rb"\x89PNG\r\n\x1a\n": "a PNG picture",
    rb"\xff\xd8\xff": "a JPEG picture",
    rb"GIF8[79]a": "a GIF picture",
    rb"II\*\0|MM\0\*": "a TIFF picture",
    rb"RIFF.{4}WEBP": "a WebP picture",
    rb"BM.{4}\0{4}": "a BMP picture",
    rb".{4}ftyp(hei[cmsx]|mif1|msf1)": "a HEIC picture",
    rb".{4}ftypavi[fs]": "an AVIF picture",
    re.escape(HDF5): "an HDF5 file",
    rb"\x93NUMPY": "a NumPy array (.npy)",
    rb"%PDF-": "a PDF document",
    rb"\x1f\x8b": "a gzip file",
    rb"BZh": "a bzip2 archive",
    rb"\xfd7zXZ\0": "an xz archive",
    rb"\x28\xb5\x2f\xfd": "a zstd archive",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb"PAR1": "a Parquet table",
    rb"MATLAB 5\.0": "a MATLAB file",
    rb"\0\0[\x08-\x0e][\x01-\x08]": "an IDX file",
    rb"\x12\x01\0{14}": "a list of MXNet's arrays",
    rb".{4}\0{4}\{\"": "a safetensors file",  # the length of its JSON header, below 4 GiB, and the header
    rb"\x80[\x02-\x05][\x20-\x7e\x80-\x9f]": "a Python pickle, as PyTorch's old .pt and .pth files are",
    rb"\x08[\x01-\x1f](\x12[\x00-\x7f][\x20-\x7e]|\x1a|\x22|\x3a|\x42)": "an ONNX model",  # ir_version, producer
}


def recognise_file_kind(start: bytes) -> str | None:
    """Return the kind of a file with an article, such as "a PNG picture"; None if it is unknown.

    start: the first ``START_BYTES`` of the file, or all of a shorter file.
    """
    if start.startswith(b"PK\3\4"):
        return _zip_kind(start)
    kinds = (name for beginning, name in _BEGINNINGS.items() if re.match(beginning, start, re.DOTALL))
    return next(kinds, None) or _text_kind(start)


def _zip_kind(start: bytes) -> str:
    """Return the kind of a zip archive, which its first member shows."""
    member = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if member.endswith(b".npy"):
        return "a NumPy archive (.npz)"
    if re.search(rb"/(data\.pkl|data/\d+|version|byteorder|\.format_version)\Z", member):
        return "a PyTorch file (.pt, .pth)"
    if b"/data/weights/" in member:
        return "a program of torch.export (.pt2)"
    if member in (b"metadata.json", b"config.json"):
        return "a Keras model"
    return "a zip archive"


def _text_kind(start: bytes) -> str | None:
    """Return the kind of a text file; None if the bytes are not text."""
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not start or error.end < len(start) - 3:  # the end may cut a character
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
