"""The audit inside a page of the book: everything that Python in a browser needs, and what answers there.

PyTorch is `kl_book.paste.stand_in`. SymPy is left out: what it derives of each divergence, and the gradients
of the objectives on the audit's worlds, is written to a file when the book is built (`recorded`) and read
where the page starts (`start`).
"""
