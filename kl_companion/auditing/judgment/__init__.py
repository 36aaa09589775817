"""Judge what was fitted, and say it: the verdict, its sentences, card, data and figures."""
