SELECT 1 / (outcome = 'locked')::int FROM idemq.acquire('bench', :key);
