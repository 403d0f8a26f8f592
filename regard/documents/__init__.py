"""Files of documents: their text is translated, everything else is kept."""

from regard.documents.archive import Limits
from regard.documents.document import ENDINGS, translated
from regard.documents.errors import DocumentError
from regard.documents.passage import bare

__all__ = ["ENDINGS", "DocumentError", "Limits", "bare", "translated"]
