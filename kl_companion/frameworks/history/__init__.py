"""What past releases of frameworks minimize, by their own code, and in which release that changed."""
