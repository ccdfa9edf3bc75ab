"""cutter.py LISTEN SERVER LOG [ONE_IN]: a Unix socket before a server's, which cuts connections: one in ONE_IN (400) of the pieces that
go through it ends after a random number of its bytes, and its connection with it, in either direction.  So an answer to
COMMIT is lost, comes in part, or stands at the end of what came.  Each cut is a line of LOG, at once."""

import asyncio
import os
import random
import sys

LISTEN, SERVER, LOG, *more = sys.argv[1:]
ONE_IN = int(more[0]) if more else 400
STARTING = 6  # pieces of a connection that are left alone
log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


async def pump(reader, writer, both, what):
    pieces = 0
    try:
        while data := await reader.read(65536):
            pieces += 1
            if pieces > STARTING and random.randrange(ONE_IN) == 0:
                writer.write(data[: random.randrange(len(data) + 1)])
                await writer.drain()
                os.write(log, f"{what}\n".encode())
                break
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    for each in both:
        each.close()


async def connected(reader, writer):
    try:
        server_reader, server_writer = await asyncio.open_unix_connection(SERVER)
    except OSError:
        writer.close()
        return
    both = (writer, server_writer)
    await asyncio.gather(pump(reader, server_writer, both, "request"), pump(server_reader, writer, both, "answer"))


async def main():
    server = await asyncio.start_unix_server(connected, LISTEN, backlog=300)
    async with server:
        await server.serve_forever()


asyncio.run(main())
