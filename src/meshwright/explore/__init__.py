"""The explorer: a page on this machine that prices a question while it is changed."""
