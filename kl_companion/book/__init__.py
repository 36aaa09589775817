"""What only this book needs: claims and errata of the sources, refusals, the explorer, the result tables."""
