SELECT id FROM idemq.enqueue('bench', :payload) \gset
