SELECT id FROM idemq.enqueue('bench', :payload, key => gen_random_uuid()::text) \gset
