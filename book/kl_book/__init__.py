"""What only this book needs: claims and errata of the sources, the explorer, the result tables."""
