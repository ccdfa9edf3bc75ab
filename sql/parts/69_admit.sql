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

CREATE FUNCTION idemq.admission_counts(OUT allowed bigint, OUT refused bigint, OUT unlimited bigint)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_admission_counts';
COMMENT ON FUNCTION idemq.admission_counts() IS 'what idemq.admissions shows; returns one row';

CREATE VIEW idemq.admissions AS SELECT allowed, refused, unlimited FROM idemq.admission_counts();
COMMENT ON VIEW idemq.admissions IS 'calls of idemq.admit on the whole server since its start, one row; those of cost 0 ask only, and are not counted';
COMMENT ON COLUMN idemq.admissions.allowed IS 'calls that their limit allowed';
COMMENT ON COLUMN idemq.admissions.refused IS 'calls that their limit refused';
COMMENT ON COLUMN idemq.admissions.unlimited IS 'calls that were allowed since their bucket found no room: raise idemq.max_buckets';
