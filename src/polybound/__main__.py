"""`python -m polybound`, and so `torchrun -m polybound`."""

from polybound.cli import main

if __name__ == "__main__":
    main()
