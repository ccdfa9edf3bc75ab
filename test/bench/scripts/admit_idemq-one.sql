SELECT * FROM idemq.admit('bench', 2000000000, '1 s');
