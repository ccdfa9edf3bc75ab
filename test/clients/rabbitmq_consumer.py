"""Pays each message of RabbitMQ's queue "payments" once, then acknowledges it."""
import os, sys, time
import pika, psycopg

ACQUIRE = """SELECT outcome, id, token, payload::text, greatest(0.1, least(1, extract(epoch FROM retry_after - now())))::float8
    FROM idemq.acquire('payments', %s, to_payload(%s), attach => true)"""

def settle(db, broker, key, body):
    while True:
        outcome, job, token, payload, wait = db.execute(ACQUIRE, (key, body)).fetchone()
        print(key, outcome, flush=True)
        if outcome in ("completed", "dead", "cancelled"):
            return
        if outcome in ("claimed", "claimed_again"):
            try:
                with db.transaction():
                    db.execute("SELECT idemq.commit(%s, %s)", (job, token))
                    db.execute("SELECT pay(%s)", (payload,))  # the effect
                return
            except psycopg.DatabaseError as error:  # also raises if the connection is broken
                db.execute("SELECT idemq.fail(%s, %s, %s)", (job, token, str(error)))
        broker.sleep(wait)  # another consumer has the job, or its retry is not due

while True:
    try:  # connect to the database first, and consume nothing without it
        with psycopg.connect(os.environ["DSN"], autocommit=True) as db, \
                pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as broker:
            channel = broker.channel()
            channel.basic_qos(prefetch_count=10)
            for method, properties, body in channel.consume("payments"):
                try:
                    settle(db, broker, properties.message_id, body)
                    channel.basic_ack(method.delivery_tag)
                except psycopg.DatabaseError as refused:
                    if not (refused.sqlstate or "").startswith(("22", "54", "IQ003")):  # no id, too long, or another message's id
                        raise
                    channel.basic_reject(method.delivery_tag, requeue=False)  # to the dead-letter exchange
    except (psycopg.Error, pika.exceptions.AMQPError, OSError) as error:
        print(repr(error), file=sys.stderr, flush=True)
        time.sleep(1)
