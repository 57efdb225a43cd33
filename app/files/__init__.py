"""Files: read only where they are sane, written whole or not at all, and what the cache may be trusted with."""
