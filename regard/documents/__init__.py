"""Translate documents (HTML, Markdown, XLIFF, PO, subtitles, Office files, EPUB) and keep everything but the text."""

from regard.documents.base import DocumentError, DocumentLimits
from regard.documents.document import translate_document

__all__ = ["DocumentError", "DocumentLimits", "translate_document"]
