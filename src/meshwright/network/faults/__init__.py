"""Dead links, devices and cores: where they are, and how a plan goes on without them."""
