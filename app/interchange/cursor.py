"""Read numbers and blocks of bytes one after the other, never beyond the end."""

import struct

from app.files.checks import BadValueError


class Cursor:
    """A position in little-endian content."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes from this position on."""
        return len(self._content) - self._at

    def integer(self, kind: str, what: str) -> int:
        """Read one integer of this type of the struct module. Raises BadValueError, naming ``what``."""
        value: int = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}"), what))[0]
        return value

    def take(self, count: int, what: str) -> memoryview:
        """Take this many bytes. Raises BadValueError, naming ``what``, if fewer are left."""
        if not 0 <= count <= self.left:
            raise BadValueError(f"ends within {what}: {self.left:,} of {count:,} bytes are left; get a fresh copy")
        self._at += count
        return memoryview(self._content)[self._at - count : self._at]

    def end(self, what: str) -> None:
        """Raise BadValueError if bytes follow ``what``."""
        if self.left:
            raise BadValueError(f"has {self.left:,} bytes after {what}; get a fresh copy")
