"""The Pub/Sub door: ``python -m asterism.gateways.pubsub``."""

from asterism.gateways.process import run_door
from asterism.gateways.pubsub import server
from asterism.gateways.pubsub.door import DOOR

if __name__ == "__main__":
    run_door(DOOR, server.run)
