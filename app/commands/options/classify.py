"""``main.py classify``: its options."""

from app.classify.request import ClassifyRequest

__all__ = ["EPILOG", "ClassifyRequest"]

EPILOG = """\
examples:
  python main.py classify images.npy --out labels
      writes labels/images.labels.npy, one byte for each image
  python main.py classify 'shards/*.gz' --out labels --logits
      all shards of a folder; also the scores
  python main.py classify @shards.txt --out labels --resume
      after an interruption: finished shards are checked and left alone
  python main.py classify big.npy --out part --start 1000000 --count 500000
      a part of the images

Images are read a block at a time: neither files nor their number are limited by
memory. A shard's results are written whole or not at all, with a receipt that
holds their checksums. Labels are the same bytes however images are cut up.

exit codes: 0 every image has its label; 2 a usage, data or device error, an
interruption, or shards that cannot be read: the others have their labels
nevertheless; 3 a bug.
"""
