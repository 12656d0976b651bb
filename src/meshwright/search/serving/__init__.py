"""Finding the best way to serve: every split of the devices, every batch worth asking about."""
