SELECT id FROM idemq.enqueue('bench', :payload, priority => 0) \gset
\sleep 1 s
