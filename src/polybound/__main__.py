"""`python -m polybound`."""

from polybound.cli import main

if __name__ == "__main__":
    main()
