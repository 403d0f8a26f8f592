"""Translate documents (HTML, Markdown, XLIFF, PO, subtitles, Office files, EPUB) and keep everything but the text."""

from regard.documents.base import DocumentError, DocumentLimits
from regard.documents.document import DOCUMENT_EXTENSIONS, ZIP_PARSERS, list_supported_extensions, translate_document
from regard.documents.tagged_text import strip_placeholder_tags

__all__ = [
    "DOCUMENT_EXTENSIONS",
    "ZIP_PARSERS",
    "DocumentError",
    "DocumentLimits",
    "list_supported_extensions",
    "strip_placeholder_tags",
    "translate_document",
]
