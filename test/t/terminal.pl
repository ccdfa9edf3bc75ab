# deploy/psql: each file answers in one screen what doc/operations/terminal.md says that it does,
# by \i, and again by \watch, for the roles that it names, in a server where all of it is wrong.
# at least 62 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $page = slurp_file("$source/doc/operations/terminal.md");
my $node = new_server('terminal', 'idemq.worker' => 'on', max_prepared_transactions => 2);

# What psql prints of commands in its usual format.
sub psql
{
	my ($user, $commands) = @_;
	my ($out, $error) = ('', '');

	IPC::Run::run([ 'psql', '-X', '-U', $user, '-h', $node->host, '-p', $node->port, 'postgres' ], '<', \$commands, '>', \$out, '2>', \$error,
		IPC::Run::timeout(180));
	return $out . $error;
}

sql($node, q[CREATE ROLE watch LOGIN IN ROLE pg_monitor; CREATE ROLE clerk LOGIN; CALL idemq.tick();
	SELECT idemq.create_queue('mail', retry_base => '1 h', retry_max => '1 h', retry_jitter => 0), idemq.create_queue('payments', max_attempts => 1, lease => '1 h'),
		idemq.create_queue('reports', max_running => 1, lease => '1 h'), idemq.create_queue('later'); SELECT idemq.pause('later');
	SELECT idemq.grant_queue('mail', 'clerk', 'claim')]);
sql($node, q[SELECT count(*) FROM idemq.enqueue_many('payments', array_fill('1'::jsonb, '{5}'));
	SELECT idemq.fail(id, token, format('card %s was refused', id)) FROM idemq.claim('payments', 5, worker => 'till-1');
	SELECT idemq.enqueue('mail', '1', run_at => now() - interval '7 min'); SELECT idemq.enqueue('mail', '2', run_at => now() - interval '9 min', priority => 1);
	SELECT idemq.enqueue('mail', '3', priority => 0)]);
sql($node, q[SELECT idemq.fail(id, token, 'no connection to 10.0.0.7') FROM idemq.claim('mail', worker => 'mailer-1');
	SELECT count(*) FROM idemq.enqueue_many('reports', '{1,2}'); SELECT idemq.enqueue('q', '1'); SELECT idemq.commit(id, token) FROM idemq.claim('q')]);
sql($node, q[SELECT idemq.schedule('nightly', '0 3 * * *', 'reports', '1', 'Europe/Berlin'); SELECT idemq.schedule('every year', '0 0 1 1 *', 'q', '1');
	UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '2 years' WHERE name = 'every year']);
my $worker = session($node);
$worker->query_safe(q[SELECT count(*) FROM idemq.claim('reports', worker => 'report-3', attach => true)]);
my $held = session($node);
$held->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
sql($node, q[BEGIN; CREATE TABLE p (); PREPARE TRANSACTION 'half']);

# What each shows, to whom.
my %shows = (
	overview => [ watch => qr/^ \(worker\) +\| \w+/m, qr/^ mail +\| +\| 00:(?:09|1\d):\S+ +\| +2 \| +0 \| +1 \| +0 \| +0 \| 100\.0/m, qr/^ payments .*\| +5 \|/m,
		qr/^ reports +\| max_running +\|/m, qr/^ later +\| paused/m ],
	oldest => [ clerk => qr/^ mail +\| +\d+ \| 00:(?:09|1\d):\S+ +\| +1 \|.*\n mail +\| +\d+ \| 00:(?:0[789]|1\d):\S+ +\| +4 \|.*\n\(2 rows\)/m ],
	errors => [ postgres => qr/^ payments \| +5 \| +5 \|.*card \? was refused/m, qr/^ mail +\| +1 \| +0 \|.*no connection to/m ],
	running_jobs => [ watch => qr/^ reports \| +\d+ \| report-3 \| +\d+ \| +1 \| active \| 00:0.*\| 00:5\S+ +\| yes +\| idle +\| ClientRead/m ],
	schedules => [ watch => qr/^ every year \| q /m, qr/^ nightly +\| reports \| 0 3 \* \* \* \| Europe\/Berlin \|/m ],
	snapshots => [ watch => qr/^ session +\| \d+ +\| postgres +\| idle in transaction \| 00:0/m, qr/^ prepared +\| half +\|/m ],
	steps => [ postgres => sql($node, "SELECT to_regclass('idemq.steps') IS NOT NULL") eq 't' ? qr/^ queue +\| job_id .*\n.*\n\(0 rows\)/m : qr/^This idemq has no steps\./ ]);

# The test switch has report.sql, which is no screen.
my @files = grep { $_ ne 'report' } map { m|/(\w+)\.sql$| } glob "$source/deploy/psql/*.sql";
is(join(' ', sort @files), join(' ', sort keys %shows), 'each file is tested');
foreach my $name (@files)
{
	my ($user, @patterns) = @{ $shows{$name} };
	my $out = psql($user, "\\cd $source/deploy/psql\n\\i $name.sql\n");
	my @lines = split /\n/, $out;

	like($out, $_, "$name shows $_") foreach @patterns;
	unlike($out, qr/ERROR|WARNING/, "$name: no error");
	cmp_ok(scalar @lines, '<=', 40, "$name: one screen high");
	cmp_ok((sort { $b <=> $a } map { length } @lines)[0], '<=', 180, "and as wide");
	# With psql's \watch.
	if ($lines[0] =~ /\|/)
	{
		my $columns = join '\s*\|\s*', map { quotemeta s/^\s+|\s+$//gr } split /\|/, $lines[0];
		my ($again, $error) = ('', '');
		my $watch = IPC::Run::start([ 'psql', '-X', '-U', $user, '-h', $node->host, '-p', $node->port, 'postgres' ], '<',
			\"\\set every 0.1\n\\i $source/deploy/psql/$name.sql\n", '>', \$again, '2>', \$error, IPC::Run::timeout(180));
		$watch->pump while $watch->pumpable && (() = $again =~ /^\s*$columns\s*$/mg) < 3;
		$watch->kill_kill;
		cmp_ok(scalar(() = $again =~ /^\s*$columns\s*$/mg), '>=', 3, "$name: again and again, with every") or diag $error;
		(my $heading = $lines[0]) =~ s/\s+/ /g;
		(my $spaced = $page) =~ s/[^\S\n]+/ /g;
		ok(index($spaced, $heading =~ s/^ | $//gr) >= 0, "$name: its heading is on the page") or diag $heading;
	}
	ok(index($page, "\n## $name\n") >= 0, "$name: it has a section");
	note $out;
}

# A stranger sees nothing of others' queues.
sql($node, 'CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA idemq TO stranger');
like(psql('stranger', "\\i $source/deploy/psql/$_.sql\n"), qr/\(0 rows\)/, "$_: nothing for a stranger") foreach qw(oldest errors running_jobs schedules);

sql($node, q[ROLLBACK PREPARED 'half']);
leave($worker, $held);
# A \watch is killed, as a rule while it sleeps.
is(unexpected($node, '08006'), '', 'no error');
$node->stop;
done_testing();
