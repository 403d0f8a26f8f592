"""An HTTP service for translations, and the page that shows translations with their attention."""
