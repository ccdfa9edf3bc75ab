"""Each message of an SQS queue is paid once, and then deleted."""
import json, os, sys, time
import boto3, psycopg
from botocore.exceptions import BotoCoreError, ClientError

sqs = boto3.client("sqs", endpoint_url=os.environ.get("SQS_ENDPOINT"))
queue = os.environ["SQS_QUEUE"]

def pay(db, body):
    with db.transaction():
        key = json.loads(body)["id"]  # the sender's: one message may be sent twice
        first = db.execute("SELECT idemq.once('payments', %s, ttl => '15 days')", (key,)).fetchone()[0]
        print(key, "first" if first else "repeated", flush=True)
        if first:
            db.execute("SELECT pay(%s)", (body,))  # the effect

while True:
    try:  # the database first: without it nothing is received
        with psycopg.connect(os.environ["DSN"], autocommit=True) as db:
            while True:
                answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=20)
                for message in answer.get("Messages", []):
                    try:
                        pay(db, message["Body"])
                        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                    except (ValueError, LookupError, TypeError, psycopg.Error) as error:
                        if db.closed:
                            raise
                        print(repr(error), file=sys.stderr, flush=True)  # it comes again, and at last to the dead-letter queue
    except (psycopg.Error, BotoCoreError, ClientError) as error:
        print(repr(error), file=sys.stderr, flush=True)
        time.sleep(1)
