-- What the web page's demo has beside the demo's own queue: a night's trouble.
SELECT idemq.create_queue('mail', max_attempts => 1);
SELECT count(*) FROM idemq.enqueue_many('mail', (SELECT array_agg(jsonb_build_object('customer', g)) FROM generate_series(1, 600) g));
SELECT count(*) FROM idemq.claim('mail', 500) c, idemq.fail(c.id, c.token,
	format('column "customer_id" of relation "customers_%s" does not exist', c.id), details => '{"sqlstate": "42703"}');
SELECT count(*) FROM idemq.claim('mail', 80) c, idemq.fail(c.id, c.token, format('no answer in %s ms', c.id));
