\set key random(1, :rows)
SELECT id, outcome, status, result FROM idemq.enqueue('bench', :payload, key => :key) \gset
