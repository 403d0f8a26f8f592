"""What is wrong with a document."""

from __future__ import annotations

from regard.errors import UserError


class DocumentError(UserError):
    """A document that cannot be translated, or must not be trusted.

    The readers say what it is or has ("is cut off"); `translated` puts the document's name in front.
    """
