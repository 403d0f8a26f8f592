"""The version, in a file that imports nothing, so that packaging can read it."""

VERSION = "1.0.0"
