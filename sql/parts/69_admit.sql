CREATE TYPE idemq.admission AS (
	allowed     boolean,
	remaining   int,
	retry_after interval
);
COMMENT ON TYPE idemq.admission IS 'answer of idemq.admit: whether, how many more at once, and how long to wait';

CREATE FUNCTION idemq.admit(bucket text, max_calls int, per interval, cost int DEFAULT 1)
	RETURNS idemq.admission
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_admit';
COMMENT ON FUNCTION idemq.admit(text, int, interval, int)
	IS 'ask for a call under a limit of max_calls per period; takes effect at once, a rollback does not undo it; retry_after is exactly when to ask again; cost 0 only asks';
