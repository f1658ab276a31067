"""`python -m runners.cli`."""

from runners.cli import main

main()
