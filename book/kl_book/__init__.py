"""What only the book needs: ledger, result tables, explorer, Python in a page. No wheel holds it."""
