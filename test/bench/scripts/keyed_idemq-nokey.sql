SELECT id, gen_random_uuid()::text AS key FROM idemq.enqueue('bench', :payload) \gset
