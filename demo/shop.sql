-- make ui-demo: a shop, and the trouble of its last night.  demo/shop.py works here.
CREATE EXTENSION idemq;
SELECT idemq.create_queue('checkout', retry_base => '10 s', retention => '1 h');
SELECT idemq.create_queue('undelivered');
SELECT idemq.create_queue('mail', max_attempts => 3, retry_base => '5 s', dead_letter_queue => 'undelivered');
SELECT idemq.create_queue('import', max_attempts => 2, retry_base => '2 s');
SELECT idemq.create_queue('thumbnails');
SELECT idemq.create_queue('stock', max_attempts => 3);
SELECT idemq.create_queue('invoices');
CREATE TABLE orders (number int, customer text, total numeric);
CREATE TABLE articles (row int, name text);

-- A handler in the server: some pictures cannot be read.
CREATE FUNCTION thumbnail(payload jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM pg_sleep(random() * 0.2);
	IF random() < 0.03 THEN
		RAISE EXCEPTION 'picture "%" is incomplete', payload->>'picture' USING ERRCODE = 'data_corrupted';
	END IF;
	RETURN jsonb_build_object('width', 160);
END $$;
SELECT idemq.set_handler('thumbnails', 'thumbnail', workers => 2);
CREATE FUNCTION count_stock(payload jsonb) RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$ SELECT jsonb_build_object('articles', count(*)) FROM public.articles $$;
SELECT idemq.set_handler('stock', 'count_stock');
SELECT idemq.schedule('count the stock', '* * * * *', 'stock', '{}', kind => 'count');

-- A migration was forgotten, and the mail's provider was away.
SELECT idemq.create_queue('newsletter', max_attempts => 1);
SELECT count(*) FROM idemq.enqueue_many('newsletter', (SELECT array_agg(jsonb_build_object('customer', g)) FROM generate_series(1, 580) g));
SELECT count(*) FROM idemq.claim('newsletter', 500) c, idemq.fail(c.id, c.token,
	format('column "customer_id" of relation "customers_%s" does not exist', c.id), details => '{"sqlstate": "42703"}');
SELECT count(*) FROM idemq.claim('newsletter', 80) c, idemq.fail(c.id, c.token, format('no answer in %s ms', c.id));

-- Nobody works on these.
SELECT count(*) FROM idemq.enqueue_many('invoices', (SELECT array_agg(jsonb_build_object('order', g)) FROM generate_series(1, 12) g));

-- An import: a file, its rows, and a report when all of them have ended.
WITH file AS (SELECT id FROM idemq.enqueue('import', '{"file": "catalogue.csv"}', key => 'catalogue.csv', kind => 'file')),
	rows AS (SELECT array_agg(r.id) AS ids FROM file, LATERAL idemq.enqueue_many('import',
		(SELECT array_agg(jsonb_build_object('row', g, 'price', CASE WHEN g % 97 = 0 THEN 'abc' ELSE (g % 50)::text END)) FROM generate_series(1, 3000) g),
		kinds => (SELECT array_agg('row'::text) FROM generate_series(1, 3000)), depends_on => ARRAY[file.id]) r)
SELECT idemq.enqueue('import', '{"report": "catalogue.csv"}', kind => 'report', depends_on => rows.ids, on_parent_failure => 'run') FROM rows;
