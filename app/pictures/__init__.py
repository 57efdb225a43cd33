"""Pictures: find the files, read them with Pillow, and prepare them as the images of Fashion-MNIST were prepared."""

from app.pictures.finding import find_pictures
from app.pictures.preparing import Prepared, prepare
from app.pictures.reading import MAX_PIXELS, UnreadablePicture, read_picture, require_pillow

__all__ = ["MAX_PIXELS", "Prepared", "UnreadablePicture", "find_pictures", "prepare", "read_picture", "require_pillow"]
