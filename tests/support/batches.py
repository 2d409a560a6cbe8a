"""What an inbox has by a time: nothing is an answer too."""

from asterism import BlockingDelivery, BlockingInbox, Delivery, Inbox


async def some(inbox: Inbox, most: int, timeout: float) -> list[Delivery]:
    """Up to so many deliveries, none where none came in time."""
    try:
        return await inbox.batch(most, timeout)
    except TimeoutError:
        return []


def some_blocking(inbox: BlockingInbox, most: int, timeout: float) -> list[BlockingDelivery]:
    """The same of the blocking client."""
    try:
        return inbox.batch(most, timeout)
    except TimeoutError:
        return []
