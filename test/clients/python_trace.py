"""python_trace.py: trace context from the producer to the handler.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import types

import idemq
import idemq._trace
import tap
from python_common import Client


class Traces(Client):
    """The packages are not Debian's: a module with the calls of their interface that the client makes."""

    def setUp(self):
        super().setUp()
        self.current = "trace-of-the-producer"
        self.spans = []
        test = self

        class Span:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                test.spans.append("end")

        class Tracer:
            def start_as_current_span(self, name, kind=None):
                test.spans.append((name, kind, test.current))
                return Span()

        def attach(context):
            before, test.current = test.current, context
            return before

        def detach(token):
            test.current = token

        fakes = {
            "propagate": types.SimpleNamespace(
                inject=lambda carrier: carrier.update(traceparent=self.current),
                extract=lambda carrier: carrier.get("traceparent"),
            ),
            "context": types.SimpleNamespace(attach=attach, detach=detach),
            "trace": types.SimpleNamespace(get_tracer=lambda name: Tracer(), SpanKind=types.SimpleNamespace(CONSUMER="C")),
        }
        for name, fake in fakes.items():
            before = getattr(idemq._trace, name, None)
            setattr(idemq._trace, name, fake)
            self.addCleanup(setattr, idemq._trace, name, before)

    def test_from_producer_to_handler(self):
        (job,) = self.add(1, headers={"own": 1})
        self.assertEqual(
            self.sql("SELECT headers FROM idemq.jobs WHERE id = %s", job),
            [({"own": 1, "traceparent": "trace-of-the-producer"},)],
        )
        self.current = "of the worker"
        self.drain(self.do)
        self.assertEqual(self.spans, [(f"process {self.queue}", "C", "trace-of-the-producer"), "end"])
        self.assertEqual(self.current, "of the worker")
        self.current = "another"
        self.assertEqual(self.add(1, headers={"traceparent": "mine"}) and 1, 1)
        self.drain(lambda job: None, outside=True)
        self.assertEqual(self.spans[2][2], "mine")


if __name__ == "__main__":
    tap.main()
