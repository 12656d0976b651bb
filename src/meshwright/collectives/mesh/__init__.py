"""What collectives on blocks of a mesh are made of: blocks, cycles, waves."""
