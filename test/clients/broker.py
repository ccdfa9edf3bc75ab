#!/usr/bin/python3
"""broker.py COMMAND: what the tests of rabbitmq.pl and kafka.pl ask of a broker.

    rabbitmq_create             queues "payments" and, for its dead letters, "refused"
    rabbitmq_send               a line of stdin each: ID TEXT (ID - is none); durable, returns when the broker has them
    rabbitmq_state QUEUE        messages that nobody has been given, and consumers
    kafka_cluster               runs one in memory until it is killed; says where it listens
    kafka_send                  a line each: KEY TEXT; to topic "events"
    kafka_offsets               of the group "idemq": committed, and the end, of all partitions

Where a broker is stands in AMQP_URL and KAFKA (librdkafka's settings as JSON).
"""

import json
import os
import sys
import time

PARTITIONS = 4


def rabbitmq():
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = connection.channel()
    channel.confirm_delivery()
    return pika, channel


def rabbitmq_create():
    _, channel = rabbitmq()
    channel.queue_declare("refused", durable=True)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "refused"}
    channel.queue_declare("payments", durable=True, arguments=letters)


def rabbitmq_send():
    pika, channel = rabbitmq()
    for line in sys.stdin:
        key, text = line.rstrip("\n").split(" ", 1)
        properties = pika.BasicProperties(message_id=None if key == "-" else key, delivery_mode=2)
        channel.basic_publish("", "payments", text, properties, mandatory=True)


def rabbitmq_state(queue):
    _, channel = rabbitmq()
    state = channel.queue_declare(queue, passive=True).method
    print(state.message_count, state.consumer_count)


def kafka_cluster():
    from confluent_kafka import Producer

    # librdkafka's own brokers: they listen on loopback, and keep nothing.
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    print(",".join(f"127.0.0.1:{broker.port}" for broker in cluster.list_topics(timeout=30).brokers.values()), flush=True)
    while True:
        time.sleep(60)


def kafka_send():
    from confluent_kafka import Producer

    failed = []
    producer = Producer({"bootstrap.servers": json.loads(os.environ["KAFKA"])["bootstrap.servers"]})
    for line in sys.stdin:
        key, text = line.rstrip("\n").split(" ", 1)
        producer.produce("events", text, key, on_delivery=lambda error, _: error and failed.append(error))
    if producer.flush(60) or failed:
        sys.exit(f"not sent: {failed}")


def kafka_offsets():
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**json.loads(os.environ["KAFKA"]), "group.id": "idemq"})
    partitions = [TopicPartition("events", n) for n in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions]
    committed = [partition.offset for partition in consumer.committed(partitions, timeout=30)]
    print(sum(max(offset, 0) for offset in committed), sum(ends))


globals()[sys.argv[1]](*sys.argv[2:])
