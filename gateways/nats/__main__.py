"""The NATS door: ``python -m asterism.gateways.nats``."""

from asterism.gateways.nats import server
from asterism.gateways.nats.door import DOOR
from asterism.gateways.process import run_door

if __name__ == "__main__":
    run_door(DOOR, server.run)
