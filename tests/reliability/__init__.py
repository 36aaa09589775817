"""What breaks, and how often: each subject is tried many times, and everything that went wrong is counted."""
