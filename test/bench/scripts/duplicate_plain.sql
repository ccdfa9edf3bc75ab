\set id random(1, :rows)
SELECT id, key, status, result FROM bench.plain WHERE id = :id \gset
