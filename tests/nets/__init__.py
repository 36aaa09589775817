"""What tables, ledger, cards, tests, names and pages say, frozen as text: a move changes none of it."""
