# A restore table by table, in any order, alongside sessions that claim and a worker that looks (restore_order,
# restore_order_slow): two servers, a dump of all kinds of jobs, and a restore in a given order.
package RestoreOrder;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

our @EXPORT = qw($without $with $dump @tables start_servers try_order);

our @tables = qw(queues jobs dependencies children steps events attempts);
my $queues = q{ARRAY['plain', 'parents', 'children', 'fifo', 'permits', 'paced', 'limited', 'told']};

our ($without, $with, $dump);

# Starts the servers, without a worker and with one, and dumps the first.
sub start_servers
{
	$without = new_server('without');
	# DROP DATABASE ends an autovacuum with an error that looks like one of the worker's, so there is no autovacuum here.
	$with = new_server('with', 'idemq.worker' => 'on', autovacuum => 'off');

	# Rows of every kind that depend on another table's rows.

	sql($without, q{
		CREATE FUNCTION parent(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.enqueue('parents', to_jsonb(p), key => p) $$;
		CREATE FUNCTION child(p text, parents text[], failure text DEFAULT 'cancel', g text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
			SELECT id FROM idemq.enqueue('children', to_jsonb(p), key => p, group_key => g, on_parent_failure => failure, depends_on =>
				(SELECT array_agg(id) FROM idemq.jobs WHERE key = ANY (parents))) $$;
		SELECT idemq.create_queue('plain', lease => '1 h'), idemq.create_queue('parents', lease => '1 h', max_attempts => 1),
			idemq.create_queue('children', lease => '1 h'), idemq.create_queue('fifo', lease => '1 h'),
			idemq.create_queue('permits', lease => '1 h', group_max_running => 2),
			idemq.create_queue('paced', lease => '1 h', group_rate_limit => 10, group_rate_period => '1 s'),
			idemq.create_queue('limited', lease => '1 h', max_running => 2), idemq.create_queue('told', lease => '1 h');
		SELECT idemq.enqueue('plain', to_jsonb(n), delay => make_interval(secs => n % 3), priority => n % 2) FROM generate_series(1, 10) n;
		SELECT idemq.enqueue(q, to_jsonb(n), group_key => 'g' || n % 2) FROM unnest('{fifo,permits,paced}'::text[]) q, generate_series(1, 10) n;
		SELECT idemq.enqueue('limited', to_jsonb(n)) FROM generate_series(1, 6) n;
		SELECT count(parent(n)) FROM unnest('{fails,works,done,bare,first,last}'::text[]) n;
		SELECT child('cancelled', '{fails,works}'), child('run', '{fails,works}', 'run'), child('wait', '{fails,works}', 'wait'),
			child('one', '{works}'), child('done', '{done,works}'), child('grouped', '{works}', g => 'g'), child('behind', '{first,last}', g => 'g');
		SELECT child('grandchild', '{one,behind}');
		SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'done';
		SELECT idemq.enqueue('told', to_jsonb(n)) FROM generate_series(1, 3) n;
		SELECT idemq.send_event('told', 'early');
		SELECT idemq.await_event(id, token, CASE payload WHEN '1' THEN 'early' ELSE 'late' END, '1 h') FROM idemq.claim('told', 3);
	});
	# These jobs are running when the dump is made; they end after the restore.
	sql($without, "CREATE TABLE held AS SELECT id, token FROM idemq.claim_any(ARRAY['fifo', 'permits', 'paced', 'limited'], 12)
		UNION ALL SELECT id, token FROM idemq.jobs WHERE status = 'running'");
	is_sql($without, 'SELECT count(*) FROM held', 2 + 4 + 2 + 2 + 1, 'jobs are in flight');
	$dump = "$PostgreSQL::Test::Utils::tmp_check/dump";
	command_ok([ 'pg_dump', '-Fc', '-f', $dump, $without->connstr('postgres') ], 'a dump');
	return;
}

# What other sessions do between two tables: it leaves no row behind, but memory keeps what they have learned.
my $look = qq{
	BEGIN; SELECT count(*) FROM idemq.claim_any($queues, 100); ROLLBACK;
	CALL idemq.wait('plain', '0'); SELECT count(*) FROM idemq.metrics; CALL idemq.tick(); SELECT idemq.reap(name) FROM idemq.queues;
};

# Ends what is held, sends what is awaited, and works until nothing is left.  Returns what is left if that takes too long.
sub work_it_off
{
	my ($node, $db) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my $left;

	sql($node, "SELECT idemq.commit(id, token) FROM held; SELECT idemq.send_event('told', 'late')", $db);
	do
	{
		sql($node, qq{SELECT CASE WHEN payload = '"fails"' THEN idemq.fail(id, token, 'no') ELSE idemq.commit(id, token) END FROM idemq.claim_any($queues, 100)}, $db);
		$left = sql($node, q{SELECT id, status, payload, idemq.why(id) FROM idemq.jobs WHERE finished_at IS NULL AND payload <> '"wait"' ORDER BY 1}, $db);
	} while ($left ne '' && time < $end);
	return $left;
}

# What pg_restore would run of the dump, in a file.
my %files;

sub file_of
{
	my ($what, @options) = @_;

	return $files{$what} //= do {
		my $file = "$PostgreSQL::Test::Utils::tmp_check/$what.sql";
		system_or_bail('pg_restore', @options, '-f', $file, $dump);
		$file;
	};
}

sub table_file { return file_of($_[0], '--data-only', '-n', 'idemq', '-t', $_[0]) }

# Restores the tables in an order, each in a transaction of its own.  written: an order in which all
# are written before the first is committed.  pause: pg_restore itself runs for each table, and a worker
# has up to so many seconds, at random, between two of them.
sub try_order
{
	my ($node, $db, $order, $written, $pause) = @_;
	my @to = ('-d', $node->connstr($db), $dump);
	my $try = $node->name . ' worker, ' . (defined $written ? "written @$written, committed " : '') . "@$order";
	my %writers;

	sql($node, "CREATE DATABASE $db");
	my ($restorer, $looker) = (session($node, $db), session($node, $db));
	$restorer->query_safe('\i ' . file_of('pre_data', '--section=pre-data'));
	foreach my $table (@{ $written // [] })
	{
		$writers{$table} = session($node, $db);
		$writers{$table}->query_safe("BEGIN;\n\\i " . table_file($table));
	}
	foreach my $table (@$order)
	{
		if (defined $written) { $writers{$table}->query_safe('COMMIT') }
		elsif (defined $pause) { system_or_bail('pg_restore', '--data-only', '-n', 'idemq', '-t', $table, @to) }
		else { $restorer->query_safe("BEGIN;\n\\i " . table_file($table) . "\nCOMMIT") }
		$looker->query($look);
		Time::HiRes::sleep(rand $pause) if $pause && $node == $with;
	}
	$restorer->query_safe('\i ' . file_of('held', '--data-only', '-t', 'held'));
	$restorer->query_safe('\i ' . file_of('post_data', '--section=post-data'));
	leave($restorer, $looker, values %writers);
	# Before anybody works, whose claims would find what memory has missed.
	is_sql($node, q{SELECT * FROM idemq.check() WHERE severity = 'error'}, '', "$try: check() is clean at once", $db);
	# The worker may be between a row and its gauge.
	wait_until($node, q{SELECT count(*) = 0 FROM idemq.metrics m WHERE ((pending, running) =
		(SELECT count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'running') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = m.queue)) IS NOT TRUE},
		't', $db);
	pass("$try: the gauges are right");
	is(work_it_off($node, $db), '', "$try: every job ends");
	is_sql($node, q{SELECT key, status FROM idemq.jobs WHERE key IN ('cancelled', 'run', 'wait', 'grandchild') ORDER BY 1},
		"cancelled|cancelled\ngrandchild|completed\nrun|completed\nwait|blocked", "$try: each as its parents say", $db);
	is_sql($node, q{SELECT * FROM idemq.check() WHERE severity = 'error'}, '', "$try: check() is clean", $db);
	sql($node, "DROP DATABASE $db WITH (FORCE)");
	return;
}

1;
