-- Failures at two times, for incident.mjs: 30 jobs died 40 minutes ago, 8 have died now, of one cause; 2 now of another.  A retry has completed 5 others.
SELECT idemq.create_queue('bills', max_attempts => 1, expect_workers => false), idemq.create_queue('scans', expect_workers => false);
SELECT count(*) FROM idemq.enqueue_many('bills', (SELECT array_agg(jsonb_build_object('bill', g)) FROM generate_series(1, 45) g), kinds => (SELECT array_agg(CASE WHEN g % 5 = 0 THEN 'refund' ELSE 'bill' END) FROM generate_series(1, 45) g));
SELECT count(*) FROM idemq.claim('bills', 30, worker => 'bill-1@a') c, idemq.fail(c.id, c.token, format('no tariff "%s"', c.id));
UPDATE idemq.attempts SET claimed_at = claimed_at - interval '40 min', ended_at = ended_at - interval '40 min' WHERE queue_id = idemq.queue_id('bills');
UPDATE idemq.jobs SET enqueued_at = enqueued_at - interval '41 min', claimed_at = claimed_at - interval '40 min', finished_at = finished_at - interval '40 min', dead_at = dead_at - interval '40 min'
	WHERE queue_id = idemq.queue_id('bills') AND dead_at IS NOT NULL;
SELECT idemq.report_worker('00000000-0000-0000-0000-0000000000b1', 'bill-1@a', '{bills}', 'python', '1.4.2', 'a.example', 8), idemq.report_worker('00000000-0000-0000-0000-0000000000b2', 'bill-2@b', '{bills}', 'python', '1.4.3', 'b.example', 8);
SELECT count(*) FROM idemq.claim('bills', 8, worker => 'bill-2@b') c, idemq.fail(c.id, c.token, format('no tariff "%s"', c.id));
SELECT count(*) FROM idemq.claim('bills', 2, worker => '<b>bill</b>') c, idemq.fail(c.id, c.token, 'no printer <b>here</b>');
SELECT count(*) FROM idemq.enqueue_many('scans', (SELECT array_agg(to_jsonb(g)) FROM generate_series(1, 5) g));
SELECT count(*) FROM idemq.claim('scans', 5, worker => 'scan-1') c, idemq.fail(c.id, c.token, format('lens %s is dirty', c.id), '0');
SELECT count(*) FROM idemq.claim('scans', 5) c, idemq.commit(c.id, c.token);
