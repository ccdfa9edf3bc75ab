-- idemq: every background job's effect, once.
-- Built from sql/parts/*.sql by make; edit those.
\echo Use "CREATE EXTENSION idemq" to load this file. \quit

-- Plain CREATE: a schema planted under this name makes the install fail.
CREATE SCHEMA idemq;
COMMENT ON SCHEMA idemq IS 'idemq: every background job''s effect, once';
