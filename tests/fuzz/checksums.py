"""Right checksums for damaged HDF5 metadata, so that the library believes them and reads on."""

from __future__ import annotations

MASK = 0xFFFFFFFF


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & MASK


def lookup3(data: bytes) -> int:
    """Bob Jenkins's hash, by which HDF5 checks metadata."""
    a = b = c = (0xDEADBEEF + len(data)) & MASK
    at = 0
    while len(data) - at > 12:
        a = (a + int.from_bytes(data[at : at + 4], "little")) & MASK
        b = (b + int.from_bytes(data[at + 4 : at + 8], "little")) & MASK
        c = (c + int.from_bytes(data[at + 8 : at + 12], "little")) & MASK
        a = (a - c) & MASK ^ _rotated(c, 4)
        c = (c + b) & MASK
        b = (b - a) & MASK ^ _rotated(a, 6)
        a = (a + c) & MASK
        c = (c - b) & MASK ^ _rotated(b, 8)
        b = (b + a) & MASK
        a = (a - c) & MASK ^ _rotated(c, 16)
        c = (c + b) & MASK
        b = (b - a) & MASK ^ _rotated(a, 19)
        a = (a + c) & MASK
        c = (c - b) & MASK ^ _rotated(b, 4)
        b = (b + a) & MASK
        at += 12
    if len(data) == at:
        return c
    tail = data[at:].ljust(12, b"\0")
    a = (a + int.from_bytes(tail[:4], "little")) & MASK
    b = (b + int.from_bytes(tail[4:8], "little")) & MASK
    c = (c + int.from_bytes(tail[8:], "little")) & MASK
    for x, by in (("c", 14), ("a", 11), ("b", 25), ("c", 16), ("a", 4), ("b", 14), ("c", 24)):
        if x == "c":
            c = ((c ^ b) - _rotated(b, by)) & MASK
        elif x == "a":
            a = ((a ^ c) - _rotated(c, by)) & MASK
        else:
            b = ((b ^ a) - _rotated(a, by)) & MASK
    return c


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
