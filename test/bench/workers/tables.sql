CREATE EXTENSION idemq;
SELECT idemq.create_queue('bench', lease => '1 min');
CREATE SCHEMA bench;
CREATE TABLE bench.effects (job bigint, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION bench.nothing(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$BEGIN END$$;
CREATE FUNCTION bench.inserts(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
	$$BEGIN INSERT INTO bench.effects (job) SELECT id FROM idemq.current_job(); END$$;
