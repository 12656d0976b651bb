"""What measurements of a job say about its machine: factors of resources, and what they cost."""
