"""What measured jobs say of their machine, and which changes and trials follow."""
