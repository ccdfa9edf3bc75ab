# The shop of doc/tutorials/shop.md, in TypeScript and in Python, through kills, cuts and restarts: processes of the web server and of the
# workers are killed, workers are replaced by new ones (a rolling deploy), sessions are terminated, connections end in the middle of a
# message (cutter.py), the server crashes, and the provider does not answer in time.  In the end there is exactly one charge per order, one mail
# of each kind, one row per report, each customer's orders were charged in their order, and never more than five per second.
#
# SHOP_FAULTS=n per language (30; once, for a release, 1000); SHOP_LANGUAGES='typescript python'.
# slow: needs npm (typescript); faults for about a minute
# at least 20 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use List::Util qw(min sum);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Shop;
use Test::More;
use Time::HiRes qw(time);

# script/test has fetched it, or said why not.
plan skip_all => 'no npm packages' unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/typescript";

my $faults = $ENV{SHOP_FAULTS} // 30;
my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('shop', 'idemq.worker' => 'on', max_connections => 100, fsync => 'off', log_statement => 'none');
my $cutter_dir = PostgreSQL::Test::Utils::tempdir_short();
my $cutter = IPC::Run::start([ '/usr/bin/python3', "$here/cutter.py", map({ "$_/.s.PGSQL.${\$node->port}" } $cutter_dir, $node->host), "$tmp/cuts", 150 ],
	'<', \undef, '>&', "$tmp/cutter.log");
append_to_file("$tmp/cuts", '');
local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
local $ENV{PGPORT} = $node->port;

my %programs = (typescript => sub { my $app = compiled('shop'); return map { $_ => [ 'node', "$app/$_.js" ] } qw(server worker) });
$programs{python} = sub { return map { $_ => [ '/usr/bin/python3', "$here/shop_py/$_.py" ] } qw(server worker) } if -e "$here/shop_py/worker.py";
my @languages = grep { !$ENV{SHOP_LANGUAGES} || $ENV{SHOP_LANGUAGES} =~ /\b$_\b/ } sort keys %programs;

my ($language, $provider, $port, %command, %running, %done, $started, $workers);

sub q_ { my ($sql) = @_; return sql($node, $sql, $language) }

# Starts a program of the shop.  Half of the workers connect through the cutter.
sub start
{
	my ($program) = @_;
	my $said = "$tmp/$language.$program." . ++$started;
	my $host = $program eq 'worker' && ++$workers % 2 ? $cutter_dir : $node->host;

	local @ENV{qw(DSN PROVIDER PORT)} = (sprintf('postgresql://%s@/%s?host=%s&port=%d', scalar getpwuid($>), $language, $host, $node->port), $provider->{url}, $port);
	return { program => $program, said => $said, at => time, run => IPC::Run::start($command{$program}, '<', \undef, '>', $said, '2>&1') };
}

# Ends a process by a signal; true if it ended as it should.
sub ended
{
	my ($it, $signal) = @_;

	$it->{run}->signal($signal);
	$it->{run}->finish;
	my $status = $it->{run}->full_result(0);
	return ($status & 127) == 9 if $signal eq 'KILL';
	# A program that has hardly started does not hear the signal yet.
	return $status == 0 || ($status == 15 && time < $it->{at} + 5) || !diag "$it->{program}: status $status\n" . slurp_file($it->{said});
}

# No process ends by itself, except a web server that loses its connection while it declares its queues.  Whatever supervises it starts
# it again.
sub look_after
{
	foreach my $name (sort keys %running)
	{
		my $it = $running{$name};
		next if eval { $it->{run}->pump_nb; 1 };
		$it->{run}->finish;
		$it->{program} eq 'server' && time < $it->{at} + 30 or fail("$language: the $it->{program} has exited unexpectedly: " . $it->{run}->full_result(0)) or diag slurp_file($it->{said});
		$running{$name} = start($it->{program});
	}
	return;
}

sub worker { return ('first', 'second')[ rand 2 ] }

my %fault = (
	'worker killed' => sub {
		my $name = worker();
		my $killed = ended($running{$name}, 'KILL');

		$running{$name} = start('worker');
		return $killed;
	},
	'web server killed' => sub {
		my $killed = ended($running{server}, 'KILL');

		$running{server} = start('server');
		return $killed;
	},
	# A rolling deploy: the new worker starts first.
	'worker replaced' => sub {
		my $name = worker();
		my $old = $running{$name};

		$running{$name} = start('worker');
		return ended($old, 'TERM');
	},
	'web server restarted' => sub {
		my $ended = ended($running{server}, 'TERM');

		$running{server} = start('server');
		return $ended;
	},
	# Of those that have a job in hand rather than of those that wait.
	'sessions terminated' => sub {
		return q_(q[SELECT count(pg_terminate_backend(pid)) > 0 FROM (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
			AND datname = current_database() AND pid <> pg_backend_pid()
			ORDER BY random() + CASE WHEN state LIKE 'idle in%' THEN 0 WHEN query LIKE 'CALL%' THEN 1 ELSE 0.5 END LIMIT 3) x]) eq 't';
	},
	'PostgreSQL crashed' => sub { crash($node); return 1 });
my %weight = ('worker killed' => 3, 'web server killed' => 1, 'worker replaced' => 2, 'web server restarted' => 1, 'sessions terminated' => 3, 'PostgreSQL crashed' => 0.5);
my $weights = sum(values %weight);

sub completed { return q_(q[SELECT count(*) FROM idemq.jobs WHERE status = 'completed']) }
sub accepted { return map { [split] } split /\n/, slurp_file("$tmp/$language.accepted") }

sub survives
{
	my $begun = time;

	%running = %done = ();
	sql($node, "CREATE DATABASE $language");
	q_('CREATE EXTENSION idemq');
	$provider = shop_provider(8, $language);
	$port = PostgreSQL::Test::Cluster::get_free_port();
	%command = $programs{$language}->();
	append_to_file("$tmp/$language.accepted", '');
	$running{server} = start('server');
	wait_until($node, q[SELECT count(*) = 1 FROM idemq.schedules], 't', $language);
	# A lease that is meant to expire: those of mails do not end with their sessions.
	q_(q[SELECT idemq.alter_queue(name, lease => '2 s', max_attempts => 1000000, retry_base => '10 ms', retry_max => '200 ms') FROM idemq.queues]);
	$running{$_} = start('worker') foreach qw(first second);
	my $customers = IPC::Run::start([ '/usr/bin/python3', "$here/shop_customers.py", "http://127.0.0.1:$port", "$tmp/$language.accepted" ], '<', \undef, '>&', "$tmp/$language.customers");

	my $cut = () = slurp_file("$tmp/cuts") =~ /\n/g;
	my $total = sub { $done{'connections cut'} = (() = slurp_file("$tmp/cuts") =~ /\n/g) - $cut; return sum(0, values %done) };
	while ($total->() < $faults)
	{
		my ($next) = sort { ($done{$a} // 0) / $weight{$a} <=> ($done{$b} // 0) / $weight{$b} || $a cmp $b } keys %fault;
		my $before = completed();

		until_true("$language: jobs are done", sub { look_after(); return completed() >= $before + 2 });
		q_(q[SELECT idemq.run_schedule_now('report')]) if $next eq 'worker killed';
		$fault{$next}->() ? $done{$next}++ : fail("$language: $next");
	}
	foreach my $kind (sort keys %fault)
	{
		cmp_ok($done{$kind} // 0, '>=', int($faults * $weight{$kind} / $weights / 2), "$language: $kind");
	}
	cmp_ok($done{'connections cut'}, '>', 0, "$language: connections cut");
	settles($customers);
	diag sprintf 'figure: %s: %d orders, %d s, %s; requests of the provider that went wrong: %s', $language, scalar(accepted()), time - $begun,
	  join(', ', map { "$_ $done{$_}" } sort keys %done), join(', ', map { "$_->[0] $_->[1]" } sort { $a->[0] cmp $b->[0] } map { my $did = did($provider, 'troubles'); map { [ $_, $did->{$_} ] } keys %$did } 1);
	$provider->{run}->kill_kill;
	return;
}

# The end, and the account.
sub settles
{
	my ($customers) = @_;

	$customers->signal('TERM');
	until_true("$language: the last orders are taken", sub { look_after(); return !eval { $customers->pump_nb; 1 } });
	$customers->finish;
	is($customers->full_result(0), 0, "$language: the customers have placed all their orders") or diag slurp_file("$tmp/$language.customers");
	my @orders = accepted();
	my $orders = @orders;

	until_true("$language: all is done", sub {
		look_after();
		q_(q[SELECT count(idemq.retry(id)) FROM idemq.jobs WHERE queue_id = idemq.queue_id('mails') AND status = 'pending' AND ready_at > now() + interval '1 h']);
		return q_(q[SELECT count(*) = 0 FROM idemq.jobs WHERE finished_at IS NULL]) eq 't'
			&& q_(q[SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('mails')]) == 2 * $orders;
	});
	q_(q[SELECT idemq.unschedule('report')]);
	until_true("$language: all reports are done", sub { return q_(q[SELECT count(*) = 0 FROM idemq.jobs WHERE finished_at IS NULL]) eq 't' });
	is(join(' ', grep { !ended($running{$_}, 'TERM') } sort keys %running), '', "$language: the last programs end by SIGTERM");

	is(q_(q[SELECT count(*), count(*) FILTER (WHERE status <> 'completed') FROM idemq.jobs WHERE queue_id <> idemq.queue_id('reports')]), 3 * $orders . '|0', "$language: each job is completed");
	is(q_(q[SELECT count(*), count(charge) FROM orders]), "$orders|$orders", "$language: each order is paid, and no order is there twice");
	is(q_(q[SELECT count(*) FROM reports]), q_(q[SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('reports') AND status = 'completed']), "$language: each report is there once");
	my (%charged, %mailed, %in_order);
	foreach my $charge (@{ did($provider, 'charges') })
	{
		$charged{ $charge->{id} }++;
		push @{ $in_order{ $charge->{customer} } }, $charge->{id};
	}
	$mailed{"$_->{order} $_->{text}"}++ foreach @{ did($provider, 'mails') };
	is(join(' ', grep { $charged{$_} > 1 } keys %charged), '', "$language: no order is charged twice");
	is(keys(%charged), $orders, "$language: each order is charged");
	is(join(', ', grep { $mailed{$_} > 1 } keys %mailed), '', "$language: no mail is sent twice");
	is(keys(%mailed), 2 * $orders, "$language: each mail is sent");
	is("@{ $in_order{$_} // [] }", join(' ', map { my $name = $_; map { $_->[1] eq $name ? $_->[0] : () } @orders } $_), "$language: the orders of $_ are charged in their order") foreach qw(anna berta carla);
	# Attempts that did not commit have a row of their own.
	is(q_(q[SELECT max(n) <= 5 FROM (SELECT count(*) OVER (ORDER BY claimed_at RANGE BETWEEN '999999 us' PRECEDING AND CURRENT ROW) AS n FROM
		(SELECT claimed_at FROM idemq.jobs WHERE queue_id = idemq.queue_id('charges') UNION ALL
			SELECT claimed_at FROM idemq.attempts WHERE queue_id = idemq.queue_id('charges')) c) x]), 't', "$language: never more than five charges in a second");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$language: check", $language);
	return;
}

foreach (@languages)
{
	$language = $_;
	survives();
}
$cutter->kill_kill;
$node->stop;
done_testing();
