# The header of a row, which other sessions write at any time: a reader is stopped before
# each instruction in turn, and there another session locks the row.  The locker that
# comes makes a transaction's number a multixact's, or the other way round; a reader that
# takes one of them with the flags of the other fails, or answers what is not so.
# slow: gdb stops the shipped library at each instruction of a function
# at least 2 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

use constant INSTRUCTIONS => 26;

my $node = new_server('headers', autovacuum => 'off');

plan skip_all => 'no gdb that may attach' unless has_debugger($node);

my ($reader, $first, $second) = map { session($node) } 1 .. 3;
my %pid = map { $_ => $_->query_safe('SELECT pg_backend_pid()') } $reader, $first, $second;
my $id = sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
my $lock = "BEGIN; SELECT FROM idemq.jobs WHERE id = $id FOR SHARE";

# A debugger that stops the reader twice before each instruction of the function that
# reads the header; a call counts as one.
my $file = "$PostgreSQL::Test::Utils::tmp_check/reader";
my ($out, $script) = ('', "$file.gdb");

append_to_file($script, <<'GDB' =~ s/FILE/$file/gr =~ s/END/2 * INSTRUCTIONS/er);
handle SIGUSR1 SIGUSR2 SIGALRM nostop noprint pass
break *idemq_jobs_hold
shell touch FILE.set
set $stop = 0
while $stop < END
  continue
  if $stop > 1
    nexti $stop / 2
  end
  shell touch FILE.stopped; while [ ! -e FILE.go ]; do sleep 0.01; done; rm FILE.go
  set $stop = $stop + 1
end
delete
detach
GDB
my $gdb = IPC::Run::start([ 'gdb', '-nx', '-batch', '-p', $pid{$reader}, '-x', $script ], '<', \undef, '>&', \$out);

sub await
{
	my $there = "$file.$_[0]";

	foreach (1 .. 6000)
	{
		return unlink $there if -e $there;
		select undef, undef, undef, 0.03;
	}
	die "not there: $there";
}

# What why() answers when the row is locked before the next instruction of its look.
sub why_while
{
	my ($locker) = @_;

	$reader->query_until(qr/sent/, "\\echo sent\nSELECT idemq.why($id);\n");
	await('stopped');
	# Where the reader holds the page, the locker waits for it: 'Buffer' from PostgreSQL 19 on.
	$locker->query_until(qr/sent/, "\\echo sent\n$lock;\n");
	wait_until($node, "SELECT state = 'idle in transaction' OR wait_event_type IN ('LWLock', 'Buffer')
		FROM pg_stat_activity WHERE pid = $pid{$locker}");
	append_to_file("$file.go", '');
	my $answer = $reader->query('SELECT 1') . $reader->{stderr};

	$reader->{stderr} = '';
	return $answer;
}

my (@alone, @beside);

await('set');
foreach my $instruction (0 .. INSTRUCTIONS - 1)
{
	# The number of a transaction becomes that of a multixact: at each moment it is held.
	$first->query_safe($lock);
	my $answer = why_while($second);
	push @beside, "$instruction: $answer" unless $answer =~ /its row is locked by pid ($pid{$first}|$pid{$second}):/;

	# A multixact whose members are gone becomes the number of a transaction.
	$_->query_safe('COMMIT') foreach $first, $second;
	$answer = why_while($first);
	push @alone, "$instruction: $answer" unless $answer =~ /its row is locked by pid $pid{$first}:|first in line/;
	$first->query_safe('COMMIT');
}
$gdb->finish;
is(join('', @beside), '', 'a second locker comes at any instruction: why says that the row is held');
is(join('', @alone), '', 'a locker comes after a multixact: why says that it is held, or free');

done_testing();
