"""webhook.py: books a payment provider's events, each once, however often it sends them."""
import http.server, json, os, threading
import idemq, psycopg

class Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with psycopg.connect(os.environ["DSN"]) as conn:
            idemq.enqueue(conn, "events", event, key=event["id"])
        self.send_response(204)  # not before it is stored
        self.end_headers()

def book(job, conn):
    conn.execute("UPDATE accounts SET balance = balance + %(amount)s WHERE account = %(account)s", job.payload)

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Webhook)
threading.Thread(target=server.serve_forever, daemon=True).start()
idemq.Worker(os.environ["DSN"], "events").run(book)
