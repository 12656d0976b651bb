"""A row of layers with its bytes and seconds, the devices it is cut over, and what a cut yields."""
