SELECT id FROM idemq.enqueue_many('bench', array_fill(:payload::jsonb, ARRAY[100]));
