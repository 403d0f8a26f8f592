"""An HTTP service for translations, and the page on which one sees where the model looked."""
