"""Draw charts as SVG for pages and files, by pure functions that need neither a library nor a GPU."""
