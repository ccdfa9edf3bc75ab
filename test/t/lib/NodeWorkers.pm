# Workers of the Node client (test/clients/node_worker.mjs) as processes.  Their handlers wait for files (gates), so that a
# test can kill a worker, or tell it to end, at a certain point.
package NodeWorkers;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use JSON::PP;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(workers_of primary open_gate worker said ended terminate kill9 enqueue is_job soon_done effects_are_once);

my $json = JSON::PP->new->canonical;
my $files = 0;
my ($node, $app);

# Known when the test begins.
sub tmp { return $PostgreSQL::Test::Utils::tmp_check }

# Sets the server, which has queue q, and the folder of the application that all functions below use.
sub workers_of { ($node, $app) = @_; return }

# How the client connects to the server.
sub primary { return (host => $node->host, port => $node->port + 0, user => scalar getpwuid($>), database => 'postgres') }

sub open_gate { append_to_file("${\tmp}/$_[0]", "open\n"); return }

# A worker: { run, pid, err, out }.
sub worker
{
	my ($kind, $options, $connection, @before) = @_;
	my $n = ++$files;
	my %worker = (err => "worker.$n.err", out => "worker.$n.out");

	local @ENV{qw(T CONNECTION OPTIONS)} = (tmp, $json->encode($connection // { primary() }), $json->encode($options // {}));
	$worker{run} = IPC::Run::start([ @before, 'node', "$app/node_worker.mjs", $kind ], '<', \undef, '>', "${\tmp}/$worker{out}",
		'2>', "${\tmp}/$worker{err}", IPC::Run::timeout(300));
	$worker{pid} = $worker{run}{KIDS}[0]{PID};
	return \%worker;
}

sub said { my ($worker, $what) = @_; until_file($worker->{err}, $what); return }

# Its end: the exit status, and what it counted.
sub ended
{
	my ($worker) = @_;

	$worker->{run}->finish;
	my $status = $worker->{run}->full_result(0);
	return ($status & 127 ? "signal $status" : $status >> 8) . ' ' . slurped($worker->{out}) =~ s/\n//r;
}

sub terminate { my ($worker) = @_; kill 'TERM', $worker->{pid}; return ended($worker) }
sub kill9 { my ($worker) = @_; $worker->{run}->signal('KILL'); $_[0]{run}->finish; return }

sub enqueue { my ($payload, $more) = (@_, ''); return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload'$more)") }

# Of a job: status, attempt, result, last error.
sub is_job
{
	my ($id, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($node, "SELECT status, attempt, result, last_error FROM idemq.jobs WHERE id = $id", $expected, $name);
	return;
}

sub soon_done
{
	my ($id, $attempt, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_soon($node, "SELECT status = 'completed' AND attempt = $attempt FROM idemq.jobs WHERE id = $id", $name);
	return;
}

# Asserts that each completed job has had its effect once, in the attempt that committed.
sub effects_are_once
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($node, q(SELECT count(*), count(DISTINCT e.id), bool_and(e.token = j.token AND j.status = 'completed') FROM effects e JOIN idemq.jobs j USING (id)),
		sql($node, q(SELECT format('%s|%s|t', count(*), count(*)) FROM effects)), 'every effect is there once, and of the attempt that committed');
	my %times;
	$times{$_}++ foreach map { /^(\d+ \d+)$/mg } slurped('effects');
	is(join(' ', grep { $times{$_} > 1 } keys %times), '', 'and outside, no attempt had its effect twice');
	return;
}

1;
