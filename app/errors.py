"""The one exception that users see."""


class UserError(Exception):
    """Something the user can put right: printed as one line, ``error: …``, with exit code 2.

    The text names what is wrong, where, and the remedy. Every module raises it for bad options, files,
    data, weights or devices; anything else that escapes is a bug.
    """
