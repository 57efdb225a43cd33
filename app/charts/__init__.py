"""Charts from stored JSON, as SVG: pure functions of a document that need neither a library nor a GPU."""
