\set bucket random(1, :buckets)
SELECT * FROM idemq.admit(:bucket::text, 2000000000, '1 s');
