SELECT id, pg_notify('bench', '') FROM idemq.enqueue('bench', :payload) \gset
