"""The ladder's pages."""
