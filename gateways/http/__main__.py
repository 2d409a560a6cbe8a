"""The HTTP door: ``python -m asterism.gateways.http``."""

import argparse

from asterism.gateways.http import server
from asterism.process_host import run_process


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m asterism.gateways.http", description=__doc__)
    run_process(lambda options: "http", lambda config, options: server.run(config), parser)


if __name__ == "__main__":
    main()
