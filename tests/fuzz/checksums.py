"""Right checksums for damaged HDF5 metadata, so that the library believes them and reads on."""

import struct

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
