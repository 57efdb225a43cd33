"""Define every JSON document of the program as a TypedDict; a type without a field ``schema`` is a part of documents.

A document is a plain dict; its type lets the type checker know each key, where the document is built and where it is
printed. ``derive`` makes the strict reader and the JSON Schema from the type; docs/generate makes the tables of fields.
The main job imports this package only while types are checked.
"""
