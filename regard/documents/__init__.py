"""Files of documents: their text is translated, everything else is kept."""

from regard.documents.archive import Limits
from regard.documents.document import ARCHIVES, ENDINGS, readable, translated
from regard.documents.errors import DocumentError
from regard.documents.passage import bare

__all__ = ["ARCHIVES", "ENDINGS", "DocumentError", "Limits", "bare", "readable", "translated"]
