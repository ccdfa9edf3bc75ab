# Workers that work while a session rebuilds indexes, moves rows and changes the table, for hazards.pl and
# hazards_slow.pl.  Each job that was accepted is written down with its enqueue, each effect with its commit: in
# the end every accepted job is there and completed, and has one effect, and no effect is without its job.
package Rebuilds;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(reset_queues check_relations prepare_work work_while);

# Empties the queues.
sub reset_queues
{
	my ($node) = @_;

	return sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
		SELECT idemq.create_queue('q', lease => '1 h');
		SELECT idemq.create_queue('none', lease => '1 h', retention => '0')");
}

my $amcheck;

# Asserts that table and indexes agree with each other.
sub check_relations
{
	my ($node, $name) = @_;

	$amcheck //= sql($node, "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'");

  SKIP:
	{
		skip 'no amcheck', 1 unless $amcheck;
		sql($node, 'SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS amcheck');
		my $bad = sqlstate($node, "SELECT bt_index_check(c.oid, true) FROM pg_index i
			JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
			WHERE i.indrelid = 'idemq.jobs'::regclass AND a.amname = 'btree' AND i.indisvalid");
		$bad .= ' ' . sql($node, "SELECT count(*) FROM verify_heapam('idemq.jobs')");
		is($bad, '00000 0', "$name: amcheck");
	}
	return;
}

# What workers do, and where they write it down.
sub prepare_work
{
	my ($node) = @_;

	return sql($node, q{
		CREATE TABLE accepted (job bigint);
		CREATE TABLE effects (job bigint);
		CREATE FUNCTION noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE FUNCTION work() RETURNS void LANGUAGE plpgsql AS $$
		DECLARE c record;
		BEGIN
			FOR c IN SELECT * FROM idemq.claim('q', 1 + (random() * 3)::int) LOOP
				IF random() < 0.2 THEN
					PERFORM idemq.fail(c.id, c.token, retry_in => '0');
				ELSE
					PERFORM idemq.commit(c.id, c.token);
					INSERT INTO effects VALUES (c.id);
				END IF;
			END LOOP;
		END $$;
	});
}

my $work = q{
INSERT INTO accepted SELECT id FROM idemq.enqueue('q', to_jsonb(repeat('x', (random() * 300)::int)),
	key => CASE WHEN random() < 0.3 THEN random()::text END, max_attempts => 1000) WHERE outcome = 'accepted';
SELECT work();
SELECT id, token FROM (SELECT 0 AS id, 0 AS token, 1 AS n UNION ALL SELECT id, token, 0 FROM idemq.claim('q')) x ORDER BY n LIMIT 1 \gset
BEGIN;
INSERT INTO effects SELECT id FROM idemq.commit_many(ARRAY[:id], ARRAY[:token]) WHERE outcome = 'committed';
COMMIT;
};

# Runs four workers until a session has run its statements for the given number of rounds, and the workers have accepted more
# jobs after each round, and more than 100 in all.
sub work_while
{
	my ($node, $name, $rounds, @statements) = @_;
	my $accepted = 'SELECT count(*) FROM accepted';
	my $trouble = '';

	reset_queues($node);
	sql($node, 'TRUNCATE effects, accepted');
	my $log = log_end($node);
	my $ddl = session($node);
	my $run = clients($node, $work, '-c', 4, '-T', 600, 'killed');
	foreach (1 .. $rounds)
	{
		my $before = sql($node, $accepted);

		foreach my $statement (@statements)
		{
			$ddl->query($statement);
			$trouble .= $ddl->{stderr} if $ddl->{stderr} =~ /ERROR/;
			$ddl->{stderr} = '';
		}
		wait_until($node, "SELECT ($accepted) > $before");
	}
	wait_until($node, "SELECT ($accepted) > 100");
	leave($ddl);
	sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'");
	is($run->(), '', "$name: no worker met an error");
	is($trouble, '', "$name: no statement met an error" . ($trouble =~ /(ERROR: .*)/ && ", not $1"));
	unlike(slurp_file($node->logfile, $log), qr/could not|leak|PANIC|TRAP|WARNING/, "$name: no complaint of the server");

	sql($node, "SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.jobs WHERE status = 'running'");
	sql($node, "DO \$\$ BEGIN WHILE EXISTS (SELECT FROM idemq.jobs WHERE status IN ('pending', 'retrying')) LOOP
		PERFORM work(); COMMIT; END LOOP; END \$\$");
	is_sql($node, "SELECT count(*) FILTER (WHERE j.status IS DISTINCT FROM 'completed') FROM accepted a FULL JOIN idemq.jobs j ON j.id = a.job", 0,
		"$name: every job that was accepted is there, and completed");
	is_sql($node, 'SELECT count(*) FROM accepted a FULL JOIN (SELECT job, count(*) AS n FROM effects GROUP BY job) e ON e.job = a.job
		WHERE a.job IS NULL OR e.n IS DISTINCT FROM 1', 0, "$name: each has one effect, and no effect is without a job");
	check_relations($node, $name);
	return;
}

1;
