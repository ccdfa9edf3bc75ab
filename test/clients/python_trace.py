"""python_trace.py: trace context from the producer to the handler.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import types
import unittest.mock

import idemq
import idemq._trace
import tap
from python_common import Client


class Traces(Client):
    """The packages are not Debian's: modules with the calls of their interface that the client makes.  python_otel.py has the real ones."""

    def setUp(self):
        super().setUp()
        self.current = "trace-of-the-producer"
        self.spans = []
        test = self

        class Span:
            def get_span_context(self):
                return types.SimpleNamespace(is_valid=True)

            def is_recording(self):
                return True

            def set_attribute(self, name, value):
                pass

            def end(self):
                test.spans.append("end")

        class Tracer:
            def start_span(self, name, parent, kind, attributes, links):
                if kind == "C":
                    test.spans.append((name, kind, parent, len(links)))
                return Span() if kind == "C" else unittest.mock.MagicMock()

        def attach(context):
            before, test.current = test.current, context
            return before

        def detach(token):
            test.current = token

        fakes = {
            "propagate": types.SimpleNamespace(
                inject=lambda carrier: carrier.update(traceparent=self.current),
                extract=lambda carrier, base: carrier.get("traceparent"),
            ),
            "context": types.SimpleNamespace(attach=attach, detach=detach, get_current=lambda: test.current, Context=dict),
            "trace": types.SimpleNamespace(
                SpanKind=types.SimpleNamespace(CONSUMER="C", PRODUCER="P", CLIENT="S"), Link=lambda context, attributes=None: context,
                get_tracer=lambda name, schema_url: Tracer(), get_tracer_provider=lambda: self, set_span_in_context=lambda span, parent: parent,
                get_current_span=lambda context=None: types.SimpleNamespace(get_span_context=lambda: types.SimpleNamespace(is_valid=context is not None)),
            ),
            "metrics": unittest.mock.MagicMock(),
            "_tools": None,
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
        self.assertEqual(self.spans, [(f"process {self.queue}", "C", "trace-of-the-producer", 1), "end"])
        self.assertEqual(self.current, "of the worker")
        self.current = "another"
        self.assertEqual(self.add(1, headers={"traceparent": "mine"}) and 1, 1)
        self.drain(lambda job: None, outside=True)
        self.assertEqual(self.spans[2][2], "mine")

    def test_errors_of_opentelemetry_do_no_harm(self):
        def fails(*args, **kwargs):
            raise ZeroDivisionError("of a processor")

        def tracer(**functions):
            return types.SimpleNamespace(start_span=lambda *args: unittest.mock.MagicMock(**functions))

        faulty = [("trace", "get_tracer", lambda name, schema_url: tracer(end=fails)), ("trace", "get_tracer", lambda name, schema_url: types.SimpleNamespace(start_span=fails)),
                  ("propagate", "extract", fails), ("propagate", "inject", fails)]  # fmt: skip
        for module, name, function in faulty:
            for outside in (False, True):
                with unittest.mock.patch.object(getattr(idemq._trace, module), name, function), self.assertLogs("idemq", "WARNING") as said:
                    idemq._trace._tools = None
                    idemq._trace._reported.clear()
                    self.add(1)
                    self.assertEqual(self.drain(lambda job, conn=None: None, outside), {"committed": 1})
                idemq._trace._tools = None
                self.assertEqual([line[:42] for line in said.output], ["WARNING:idemq:OpenTelemetry raised an erro"])
        self.assertEqual(self.current, "trace-of-the-producer")


if __name__ == "__main__":
    tap.main()
