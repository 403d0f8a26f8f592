"""Tools for parallel corpora: filters, statistics, downloads, archives and writers."""
