"""Systems that nobody has built: a chip, a memory, links and a network, put together."""
