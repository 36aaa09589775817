"""`python -m kl_book`: list, claims and table from the command line, one module per verb."""
