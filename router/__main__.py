"""The front-end process: ``python -m asterism.router``."""

import argparse

from asterism.process_host import run_process
from asterism.router import host


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m asterism.router", description=__doc__)
    run_process(lambda _: "frontend", lambda config, _: host.run(config), parser)


if __name__ == "__main__":
    main()
