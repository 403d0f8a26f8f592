"""Access to the service: API keys and rate limits."""
