"""Ways to break a good file: of bytes, whatever they mean, and of JSON, which stays JSON."""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

MASK = 0xFFFFFFFF
# What is changed, by what, and what is then added to that; by how many bits it is turned.
MIXED = ((0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4))
LAST = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & MASK


def lookup3(data: bytes) -> int:
    """Bob Jenkins's hash, by which HDF5 checks metadata."""
    state = [(0xDEADBEEF + len(data)) & MASK] * 3
    padded = data + bytes(-len(data) % 12)
    for at in range(0, len(padded), 12):
        words = struct.unpack_from("<3I", padded, at)
        state = [(x + y) & MASK for x, y in zip(state, words, strict=True)]
        if at + 12 < len(padded):
            for x, y, z, by in MIXED:
                state[x] = (state[x] - state[y]) & MASK ^ _rotated(state[y], by)
                state[y] = (state[y] + state[z]) & MASK
    for x, y, by in LAST if data else ():
        state[x] = ((state[x] ^ state[y]) - _rotated(state[y], by)) & MASK
    return state[2]


def repaired(damaged: bytes) -> bytes:
    """The file with the right checksums in its superblock (versions 2 and 3) and object headers (version 2)."""
    data = bytearray(damaged)
    if data[8:9] in (b"\2", b"\3") and len(data) >= 48:
        data[44:48] = lookup3(bytes(data[:44])).to_bytes(4, "little")
    at = data.find(b"OHDR")
    while at >= 0:
        end = _end_of_header(data, at)
        if at < end <= len(data) - 4 and end - at < 4096:
            data[end : end + 4] = lookup3(bytes(data[at:end])).to_bytes(4, "little")
        at = data.find(b"OHDR", at + 4)
    return bytes(data)


def _end_of_header(data: bytearray, at: int) -> int:
    """Where its first chunk's checksum is: behind prefix, times, phase changes and messages, as its flags have them."""
    flags = data[at + 5] if len(data) > at + 5 else 0
    start = at + 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    return start + width + int.from_bytes(data[start : start + width], "little")


EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def flip(rng: Random, data: bytearray) -> None:
    """One to four bits."""
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def scribble(rng: Random, data: bytearray) -> None:
    """Up to eight bytes in a row become anything."""
    at = rng.randrange(len(data))
    count = min(rng.randint(1, 8), len(data) - at)
    data[at : at + count] = rng.randbytes(count)


def field(rng: Random, data: bytearray) -> None:
    """A number of one to eight bytes, of either byte order, becomes an extreme one."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(len(data) - size, 0) + 1)
    value = rng.choice(EXTREMES) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "big")))


def truncate(rng: Random, data: bytearray) -> None:
    """Cut off its end."""
    del data[rng.randrange(len(data)) :]


def extend(rng: Random, data: bytearray) -> None:
    """Something follows: zeros, anything, or the same again."""
    count = rng.choice((1, 4, 16, 300))
    data += rng.choice((bytes(count), rng.randbytes(count), bytes(data)))


def splice(rng: Random, data: bytearray) -> None:
    """A part is put over another, between two bytes, or taken out."""
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    part = data[start : start + rng.choice((1, 4, 16, 64))]
    where = rng.choice((slice(at, at + len(part)), slice(at, at), slice(start, start + len(part))))
    data[where] = b"" if where.start == start else part


BYTES: tuple[Callable[[Random, bytearray], None], ...] = (flip, flip, scribble, field, field, truncate, extend, splice)


def damaged(rng: Random, good: bytes) -> bytes:
    """One to three changes of bytes; now and then none, so that the good file is read, too."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if rng.random() > 0.03 else 0):
        if data:
            rng.choice(BYTES)(rng, data)
    return bytes(data)


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**64), 10**400, 0.0, -0.0, 0.5, 1e308, 5e-324, 1e400, -1e400),
    *(float("nan"), "", "x", "-1", "1e999", "\0", "\ud800", "ä\n\u2028", "9" * 5000, "a" * 100_000),
    *([], [[]], [0] * 3, {}, {"": {}}, {"": 0}, {"schema": None}),
    *(7, 2**31 - 1, 1e-308, "1", "\udc80", "é" * 3000),
)
GARBAGE = (b"[" * 5000, b"NaN", b"1e999", b"9" * 5000, b'"', b"\0", b"", b"{", b",")  # in the place of a byte


def changed(rng: Random, document: Any) -> Any:
    """The document (JSON's types) with one value replaced, taken out, renamed or doubled, wherever it lies."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.15:
        return rng.choice(VALUES)
    if isinstance(document, list):
        at = rng.randrange(len(document))
        what = rng.randrange(8)
        if what == 0:
            return document[:at] + document[at + 1 :]
        if what == 1:
            return [*document, document[at]]
        return [*document[:at], changed(rng, document[at]), *document[at + 1 :]]
    key = rng.choice(list(document))
    rest = {name: value for name, value in document.items() if name != key}
    what = rng.randrange(8)
    if what == 0:
        return rest
    if what == 1:
        return {**rest, rng.choice(("", "x", key.upper(), key + " ", "ä\n", *document)): document[key]}
    return {**document, key: changed(rng, document[key])}


def other_json(rng: Random, document: Any) -> bytes:
    """The text of a changed document; now and then nested deeply, or with damaged bytes."""
    for _ in range(rng.choice((1, 1, 2, 3)) if rng.random() > 0.03 else 0):
        document = changed(rng, document)
    data = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    chance = rng.random()
    if chance < 0.02:
        return b"[" * 50_000 + data
    if chance < 0.08:
        at = rng.randrange(len(data))
        return data[:at] + rng.choice(GARBAGE) + data[at + 1 :]
    return damaged(rng, data) if chance < 0.25 else data


def garbled(rng: Random, document: Any) -> str:
    """``other_json`` as text."""
    return other_json(rng, document).decode("utf-8", "replace")
