"""`python -m kl_companion.cli` does what the command `kl-companion` does."""

from kl_companion.cli.command import main

raise SystemExit(main())
