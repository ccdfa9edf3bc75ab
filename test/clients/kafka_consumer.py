"""Enqueues the messages of Kafka's topic "events" in the queue "events", then commits their offsets."""
import json, os, sys, time
import psycopg
from confluent_kafka import Consumer, KafkaException

# Both statements go to the server in one message, so no one waits for this process while it holds the lock.
ENQUEUE = """SELECT pg_advisory_xact_lock(hashtextextended(p, 0)) FROM unnest(%(partitions)s::text[]) p;
    SELECT idemq.enqueue_many('events',
        (SELECT array_agg(to_payload(v) ORDER BY n) FROM unnest(%(values)s::bytea[]) WITH ORDINALITY u(v, n)),
        keys => %(keys)s::text[], group_keys => %(groups)s::text[])"""

def enqueue(db, batch):
    partitions = [f"{message.topic()}/{message.partition()}" for message in batch]
    db.execute(ENQUEUE, {
        "partitions": sorted(set(partitions)),
        "values": [message.value() or b"null" for message in batch],
        "keys": [f"{partition}/{message.offset()}" for partition, message in zip(partitions, batch)],
        "groups": [message.key() and message.key().decode() for message in batch]})

while True:
    try:  # connect to the database first, and join the group only afterwards
        with psycopg.connect(os.environ["DSN"], autocommit=True, cursor_factory=psycopg.ClientCursor) as db:
            kafka = Consumer({**json.loads(os.environ["KAFKA"]), "group.id": "idemq", "enable.auto.commit": False})
            try:
                kafka.subscribe(["events"])
                while True:
                    batch = kafka.consume(500, timeout=1)
                    for failed in filter(None, (message.error() for message in batch)):
                        raise KafkaException(failed)
                    if batch:
                        enqueue(db, batch)
                        kafka.commit(asynchronous=False)
            finally:
                kafka.close()
    except (psycopg.OperationalError, psycopg.InternalError, KafkaException) as error:
        print(repr(error), file=sys.stderr, flush=True)
        time.sleep(1)
