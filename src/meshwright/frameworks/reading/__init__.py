"""Files that start jobs, read back as options of this program."""
