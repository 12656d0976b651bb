"""Questions of serving, answered."""
