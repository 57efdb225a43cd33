"""Every JSON document as a typed record, by subject. A record with a field ``schema`` is a document.

A document is a plain dict, and its type a TypedDict, so that the type checker knows each key where a document is built
and where its text is made. ``derive`` makes strict reading and JSON Schema from the type, docs/generate the tables of
fields. The main job imports the types for the type checker only.
"""
