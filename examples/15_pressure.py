"""A bounded queue for clients in other languages: the protocol pressure 0.15.

    python examples/15_pressure.py

It prints:

    refused: queue 'example.pipe' is full
    taken: 1 2 3 4 5 6 7 8 9
    refused: queue 'example.pipe' is closed
    9 messages of 9 bytes went through
    left of it: nothing
"""

import threading

from server import url

from penstock import QueueClosed, QueueFull
from penstock.pressure import PressureQueue

NAME = "example.pipe"


def produce() -> None:
    with PressureQueue(NAME, url()) as pipe:
        for number in range(4, 10):
            pipe.put(str(number))  # waits while the pipe is full; no other client can put
        pipe.close()


with PressureQueue(NAME, url()) as pipe:
    pipe.create(bound=3)
    for number in (1, 2, 3):
        pipe.put(str(number), timeout=5)
    try:
        pipe.put_nowait("4")
    except QueueFull as refusal:
        print("refused:", refusal)

    producer = threading.Thread(target=produce)
    producer.start()
    print("taken:", *(message.decode() for message in pipe))  # until it is closed and empty
    producer.join()
    try:
        pipe.put("10")
    except QueueClosed as refusal:
        print("refused:", refusal)

    through = pipe.counters()
    print(through.consumed_messages, "messages of", through.consumed_bytes, "bytes went through")
    pipe.delete()
    print("left of it:", "something" if pipe.exists() else "nothing")
