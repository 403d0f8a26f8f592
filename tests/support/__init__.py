"""Builders, oracles and real processes that several test files share."""
