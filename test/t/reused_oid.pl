# What shared memory knew of a database goes with it: a database that gets the same OID finds nothing of it.
# at least 16 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('reused_oid', 'idemq.worker' => 'on', 'idemq.max_buckets' => 32);
my $handler = "SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 1);
	CREATE FUNCTION public.f(jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS
		\$\$BEGIN IF \$1 = '0' THEN RAISE 'the first database''s error'; END IF; END\$\$;
	SELECT idemq.set_handler('q', 'public.f(jsonb)')";
my $names = sub { my ($name, $n) = @_; return "SELECT count(*) FILTER (WHERE a.allowed) FROM generate_series(1, $n) i, idemq.admit('$name' || i, 1, '100 years') a" };

sub make
{
	my ($name) = @_;

	sql($node, "CREATE DATABASE $name OID 900000");
	sql($node, 'CREATE EXTENSION idemq', $name);
	return;
}

# Ends all workers and handlers of the server, or lets them come again.
sub workers
{
	my ($setting) = @_;

	sql($node, "ALTER SYSTEM SET idemq.worker = $setting");
	$node->reload;
	wait_until($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('idemq worker', 'idemq handler')}, 0) if $setting eq 'off';
	return;
}

# ---- A database that uses everything that is kept by database

make('first');
sql($node, $handler, 'first');
sql($node, "SELECT idemq.enqueue('q', to_jsonb(n)) FROM generate_series(0, 3) n", 'first');
wait_until($node, 'SELECT done_total, failed_total, last_error FROM idemq.handlers', '3|1|the first database\'s error', 'first');
wait_until($node, "SELECT completed, dead FROM idemq.metrics WHERE queue = 'q'", '3|1', 'first');
workers('off');
is_sql($node, 'SELECT sum(runs) > 0 FROM idemq.maintenance_tasks', 't', 'its worker has run maintenance tasks', 'first');
sql($node, "SELECT idemq.drop_handler('q'); SELECT idemq.enqueue('q', '1', group_key => 'g') FROM generate_series(1, 3); SELECT idemq.claim('q', 10)", 'first');
is_sql($node, 'SELECT count(*) FROM idemq.running_jobs', 1, 'it has a lease', 'first');
# No worker is there that would take the note that the table was full.
is_sql($node, $names->('first', 20), 17, 'its share of the buckets is used up, and so is the bucket that its other names share', 'first');
cmp_ok(sql($node, "SELECT refused FROM idemq.memory WHERE resource = 'buckets'"), '>', 0, 'there was no room');
my $used = sql($node, "SELECT used FROM idemq.memory WHERE resource = 'buckets'");
is($used, 16, 'half of the table');

# ---- Another one with its OID

sql($node, 'DROP DATABASE first');
is_sql($node, "SELECT used FROM idemq.memory WHERE resource = 'buckets'", 0, 'DROP DATABASE removes the buckets');
make('second');
is_sql($node, "SELECT oid FROM pg_database WHERE datname = 'second'", 900000, 'another database with the OID');
sql($node, $handler, 'second');
is_sql($node, 'SELECT done_total, failed_total, last_error, jobs_per_second FROM idemq.handlers', '0|0||0', 'its handler has done nothing', 'second');
is_sql($node, 'SELECT coalesce(sum(runs), 0) FROM idemq.maintenance_tasks', 0, 'no maintenance task has run', 'second');
is_sql($node, 'SELECT count(*) FROM idemq.running_jobs', 0, 'it has no lease', 'second');
is_sql($node, "SELECT used, refused FROM idemq.memory WHERE resource = 'leases of this database'", '0|0', 'nor did any find no room', 'second');
is_sql($node, "SELECT pending, running, completed, dead, enqueued_total, dead_total FROM idemq.metrics WHERE queue = 'q'", '0|0|0|0|0|0', 'its jobs are counted from zero', 'second');
is_sql($node, $names->('second', 16), 16, 'its names are limited by their own calls alone', 'second');
is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'buckets.full'", '', 'check()', 'second');
my $log = log_end($node);
workers('on');
sql($node, "SELECT idemq.enqueue('q', '1')", 'second');
wait_until($node, 'SELECT done_total, failed_total FROM idemq.handlers', '1|0', 'second');
is_sql($node, 'SELECT sum(runs) > 0 FROM idemq.maintenance_tasks', 't', 'maintenance tasks run', 'second');
unlike(slurp_file($node->logfile, $log), qr/shared memory is full/, 'the worker does not say that there was no room for the dropped database');
done_testing();
