"""Where the ranks of a plan go, which way their messages take, and what each link carries."""
