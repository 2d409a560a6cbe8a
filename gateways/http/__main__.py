"""The HTTP door: ``python -m asterism.gateways.http``."""

from asterism.gateways.http import server
from asterism.gateways.http.door import DOOR
from asterism.gateways.process import run_door

if __name__ == "__main__":
    run_door(DOOR, server.run)
