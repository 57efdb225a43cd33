"""Names of classes in a file's metadata, as other systems write them."""

from collections.abc import Mapping

from app.files.checks import BadValueError, items, parsed_json, shown, text
from app.network.definitions import Network

KEYS = ("classes", "class_names", "labels", "names", "id2label")  # of metadata, where such names stand


def class_names(metadata: Mapping[str, str], network: Network, notes: list[str]) -> tuple[str, ...] | None:
    """Return the names under the first of ``KEYS`` that is there: a JSON list, or an object of numbers and names.

    None, with a note, for anything else, and for names that are not one for each output of the network.
    """
    key = next((key for key in KEYS if key in metadata), None)
    if key is None:
        return None
    (classes,) = network.steps[-1].in_shape
    try:
        found = parsed_json(metadata[key])
        if isinstance(found, dict):
            found = [found.get(str(at)) for at in range(len(found))]
        names = tuple(items(text())(found))
        if len(names) != classes:
            raise BadValueError(f"{len(names):,} names for {classes:,} classes")
    except BadValueError as error:
        notes.append(f"the names of classes in its metadata ({shown(key)}) are left out: {error}")
        return None
    return names
