"""The audit where PyTorch is not: in a page of this book."""
