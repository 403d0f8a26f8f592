"""Models, batches, and the threads and processes that work for requests."""
