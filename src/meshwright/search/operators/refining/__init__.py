"""Level 2: options and places chosen again where all of them share the links."""
