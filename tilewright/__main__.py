"""``python -m tilewright``: the command, where its script is not on the path."""

from tilewright.evolve.cli import command

if __name__ == "__main__":
    command()
