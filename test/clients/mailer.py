"""mailer.py: sends e-mails through a provider that sometimes answers 502, or too late."""
import json, os, urllib.request
import idemq

def send(job):
    def call(step):
        headers = {"Idempotency-Key": step.key, "Content-Type": "application/json"}
        request = urllib.request.Request(os.environ["PROVIDER"], json.dumps(step.request).encode(), headers)
        with urllib.request.urlopen(request, timeout=step.timeout) as response:
            return json.load(response)

    return job.step("send", call, request=job.payload, call_timeout=2)

idemq.Worker(os.environ["DSN"], "mail", concurrency=4).run_outside(send)
