-- What ui/test/jobs.mjs looks at: run by test/clients/ui.pl.
SELECT idemq.create_queue(n, max_attempts => 3, retry_base => '1 h') FROM unnest('{shop,post,bulk,held,markup,desk}'::text[]) n;

-- Python: a failed attempt, then one with a chain of errors, of which two frames are the client's.
SELECT id AS job FROM idemq.enqueue('shop', '{"order": 1842, "customer": {"id": 77, "name": "Jörg Müller"}, "items": [{"sku": "A-1", "price": 12345678901234567890.10}], "note": null, "express": true}',
	key => 'order-1842', kind => 'charge', headers => '{"trace": "00-4bf9"}') \gset
SELECT idemq.fail(id, token, 'ConnectionError: no answer from payments.example.org in 5 s', retry_in => '0',
	details => '{"type": "ConnectionError", "trace": "Traceback (most recent call last):\n  File \"/srv/shop/tasks.py\", line 41, in charge\n    answer = http.post(url)\nConnectionError: no answer from payments.example.org in 5 s\n"}')
	FROM idemq.claim_job(:job, worker => 'shop-1@host7');
SELECT idemq.fail(id, token, 'BankError: customer 77 has no account', permanent => true,
	details => '{"type": "BankError", "sqlstate": "22023", "trace": "Traceback (most recent call last):\n  File \"/srv/shop/bank.py\", line 12, in account\n    return row[\"iban\"]\n           ~~~^^^^^^^^\nKeyError: ''iban''\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File \"/usr/lib/python3/dist-packages/idemq/_attempts.py\", line 512, in _run\n    result = handler(job)\n  File \"/usr/lib/python3/dist-packages/idemq/_job.py\", line 88, in __call__\n    return self.function(job)\n  File \"/srv/shop/tasks.py\", line 40, in charge\n    account = bank.account(customer)\n  File \"/srv/shop/bank.py\", line 14, in account\n    raise BankError(\"customer 77 has no account\") from error\nshop.bank.BankError: customer 77 has no account\n"}')
	FROM idemq.claim_job(:job, worker => 'shop-2@host7');
-- Node, with a cause.
SELECT id AS job FROM idemq.enqueue('shop', '{"order": 1843}', key => 'order-1843', kind => 'invoice') \gset
SELECT idemq.fail(id, token, 'TypeError: Cannot read properties of undefined (reading ''vat'')',
	details => '{"type": "TypeError", "trace": "TypeError: Cannot read properties of undefined (reading ''vat'')\n    at total (file:///srv/shop/invoice.js:14:22)\n    at async Worker.run (file:///srv/shop/node_modules/idemq/lib/run.js:211:9)\n    at process.processTicksAndRejections (node:internal/process/task_queues:95:5) {\n  [cause]: Error: no row of table rates for \"XX\"\n      at rate (file:///srv/shop/rates.js:3:9)\n}"}')
	FROM idemq.claim_job(:job, worker => 'node-1');
-- A traceback in the error, whose line ends were written as \n.
SELECT id AS job FROM idemq.enqueue('shop', '{"order": 1844}', key => 'order-1844', kind => 'charge') \gset
SELECT idemq.fail(id, token, 'Traceback (most recent call last):\n  File "/srv/shop/run.py", line 7, in <module>\n    main()\n  File "/srv/shop/run.py", line 3, in main\n    1 / 0\nZeroDivisionError: division by zero')
	FROM idemq.claim_job(:job, worker => 'sql-1');
-- A step, a checkpoint, an event; one that runs; one that is scheduled.
SELECT id AS job FROM idemq.enqueue('shop', '{"order": 1845}', key => 'order-1845', kind => 'charge') \gset
SELECT id, token FROM idemq.claim_job(:job, worker => 'shop-1') \gset
CALL idemq.begin_step(:id, :token, 'charge card', '{"amount": 1200}', '30 s');
SELECT idemq.finish_step(:id, :token, 'charge card', '{"charge": "ch_1845"}');
SELECT idemq.checkpoint(:id, :token, '{"done": 3, "of": 8}');
SELECT idemq.await_event(:id, :token, 'paid 1845', '3 days');
SELECT id AS job FROM idemq.enqueue('shop', '{"file": "articles.csv"}', key => 'import-7', kind => 'import') \gset
SELECT id, token FROM idemq.claim_job(:job, worker => 'importer@host3', lease => '1 h') \gset
SELECT idemq.checkpoint(:id, :token, '{"done": 31250, "of": 50000}');
SELECT idemq.enqueue('shop', '{"later": true}', key => 'later', kind => 'report', run_at => now() + interval '1 day');
SELECT idemq.enqueue('shop', '{"today": true}', key => 'today', kind => 'report', run_at => now() + interval '2 days');
SELECT idemq.enqueue('desk', '{}', key => 'alone', priority => 6);

-- A graph that is drawn in full.
SELECT count(*) FROM idemq.enqueue_graph('[{"name": "order", "queue": "desk", "payload": {}, "kind": "order", "key": "graph"}, {"name": "pay", "queue": "desk", "payload": {}, "kind": "pay", "depends_on": ["order"]},
	{"name": "pack", "queue": "desk", "payload": {}, "kind": "pack", "depends_on": ["order"]}, {"name": "send", "queue": "desk", "payload": {}, "kind": "send", "depends_on": ["pay", "pack"]}]');

-- Lists: 120 letters in two kinds, some in groups; 2,000 to cancel, 1,500 to hold; one payload that is too large to read.
SELECT count(*) FROM idemq.enqueue_many('post', (SELECT array_agg(jsonb_build_object('to', 'somebody' || g || '@example.org', 'order', 18000 + g, 'language', 'de', 'template', 'order-shipped')) FROM generate_series(1, 120) g),
	keys => (SELECT array_agg('letter-2026-11-24-order-' || 18000 + g) FROM generate_series(1, 120) g), kinds => (SELECT array_agg((ARRAY['letter', 'reminder'])[1 + g % 2]) FROM generate_series(1, 120) g));
SELECT count(*) FROM idemq.enqueue_many('post', (SELECT array_agg(jsonb_build_object('grouped', g)) FROM generate_series(1, 70) g), group_keys => (SELECT array_agg('tenant ' || g % 2) FROM generate_series(1, 70) g),
	run_ats => array_fill(now() + interval '1 day', ARRAY[70]));
SELECT idemq.enqueue('post', (SELECT jsonb_build_object('big', string_agg(md5(g::text), '')) FROM generate_series(1, 5000) g), key => 'big');
SELECT count(*) FROM idemq.enqueue_many('bulk', (SELECT array_agg(jsonb_build_object('row', g)) FROM generate_series(1, 2000) g), kinds => (SELECT array_agg((ARRAY['a', 'b'])[1 + g % 2]) FROM generate_series(1, 2000) g));
SELECT count(*) FROM idemq.enqueue_many('held', (SELECT array_agg(jsonb_build_object('row', g)) FROM generate_series(1, 1500) g), keys => (SELECT array_agg('held ' || g) FROM generate_series(1, 1500) g));

-- Markup in each field that a page shows.
SELECT id AS job FROM idemq.enqueue('markup', '{"<b>x</b>": "<script>alert(1)</script>", "</script>": ["<img src=x onerror=alert(2)>"]}', key => '"><img src=x onerror=alert(3)>',
	kind => '<script>alert(4)</script>', headers => '{"h": "<script>alert(5)</script>"}') \gset
SELECT idemq.fail(id, token, '<script>alert(6)</script>', retry_in => '0', details => '{"<i>": "<script>alert(7)</script>", "trace": "Traceback (most recent call last):\n  File \"<script>alert(8)</script>\", line 1\n    <img src=x onerror=alert(9)>\nError: <script>alert(10)</script>"}')
	FROM idemq.claim_job(:job, worker => '<script>alert(11)</script>');
SELECT id, token FROM idemq.claim_job(:job, worker => '"><img src=x onerror=alert(12)>', lease => '1 h') \gset
CALL idemq.begin_step(:id, :token, '<img src=x onerror=alert(13)>', '{"q": "<script>alert(14)</script>"}', '30 s');
SELECT idemq.finish_step(:id, :token, '<img src=x onerror=alert(13)>', '{"a": "</pre><script>alert(15)</script>"}');
SELECT idemq.checkpoint(:id, :token, '{"done": 1, "of": 2, "</ul>": "<script>alert(16)</script>"}');
SELECT idemq.enqueue('markup', '"<script>alert(17)</script>"', kind => '<svg onload=alert(18)>', group_key => '<script>alert(19)</script>', depends_on => ARRAY[:job]);

-- Who may only look, and who may do all but what an administrator may.
CREATE ROLE looker LOGIN; CREATE ROLE clerk LOGIN;
SELECT idemq.grant_queue(q, 'looker', 'claim'), idemq.grant_queue(q, 'clerk', 'claim'), idemq.grant_queue(q, 'clerk', 'enqueue') FROM unnest('{shop,post}'::text[]) q;
