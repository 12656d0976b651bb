"""Questions: one typed record for each command, made from command lines, keywords and files."""
