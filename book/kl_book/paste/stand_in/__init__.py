"""A small PyTorch in plain Python: the operations that losses use, with their gradients.

It runs where PyTorch does not, such as in a page of this book. Every operation agrees with PyTorch in value
and gradient, or says that it is not here. `kl_book.paste.stand_in.namespace.modules` makes `torch` and the
others.
"""
