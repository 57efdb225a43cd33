"""Pictures: find the files, read them with Pillow, and prepare them as the images of Fashion-MNIST were prepared."""

from app.images.pictures.finding import find_pictures
from app.images.pictures.looks import MOST_SHOWN, brightness_note, save_grid
from app.images.pictures.preparing import INVERT, Prepared, prepare
from app.images.pictures.reading import MAX_PIXELS, UnreadablePicture, read_picture, require_pillow

__all__ = [
    "INVERT",
    "MAX_PIXELS",
    "MOST_SHOWN",
    "Prepared",
    "UnreadablePicture",
    "brightness_note",
    "find_pictures",
    "prepare",
    "read_picture",
    "require_pillow",
    "save_grid",
]
