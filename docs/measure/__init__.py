"""Single measurements that pages quote: ``python -m docs.measure.NAME``."""
