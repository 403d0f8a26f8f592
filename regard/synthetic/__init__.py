"""Generated corpora, one for each task: the demos train on them, and so do the tests."""
