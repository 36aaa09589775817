"""The book's explorer: this package's definitions as JavaScript, its page, and the numbers it must show."""
