"""What regard is measured by; each file is a command."""
