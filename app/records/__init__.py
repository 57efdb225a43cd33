"""Define every JSON document as a typed record. A record with a field ``schema`` is a document, others are parts.

A document is a plain dict, and its type is a TypedDict: the type checker knows each key, both where a document is built
and where it is printed. ``derive`` makes strict reading and the JSON Schema from the type; docs/generate makes the
tables of fields. The main job imports this package only while types are checked.
"""
