"""The ledger: what the sources say, each statement with its check; errata and concordance."""
